"""What is asked of the compile service and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from poot_core import Target

__all__ = ["CompileKind", "CompileRequest", "CompiledObject"]

CompileKind = Literal[
    "llvm-host-object", "llvm-nvptx", "llvm-amdgcn-object", "llvm-amdgcn-assembly", "gpu-package"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """One module to compile.

    Attributes:
        kind: ``llvm-host-object`` (ELF64 relocatable object without undefined symbols),
            ``llvm-nvptx`` (PTX text), ``llvm-amdgcn-object`` (ELF64 relocatable object) or
            ``llvm-amdgcn-assembly`` (the same code as text). ``gpu-package`` is made without the
            service: a ``KernelPackage``, encoded.
        ir: Textual LLVM IR, or a function that returns it, called on a cache miss alone.
        target: What to compile for; features are LLVM's names.
        entries: Names of the functions that the caller will use.
        opt_level: Level of LLVM's middle end, 0 to 3; instruction selection always optimises.
        identity: What the IR is a function of, such as a canonical kernel hash with its generator's
            version; needed when ``ir`` is a function, replaces the text in the cache key.
    """

    kind: CompileKind
    ir: str | Callable[[], str] = field(repr=False)
    target: Target
    entries: tuple[str, ...]
    opt_level: int = 3
    identity: str | None = None

    def __post_init__(self) -> None:
        if self.identity is None and not isinstance(self.ir, str):
            raise TypeError("a CompileRequest whose ir is a function needs an identity")

    def text(self) -> str:
        """Return the IR."""
        return self.ir if isinstance(self.ir, str) else self.ir()

    def key(self) -> str:
        """Return the SHA-256 (hex) that names the result in the kernel cache."""
        if self.identity is None:
            assert isinstance(self.ir, str)
            source = "text\0" + self.ir
        else:
            source = "identity\0" + self.identity
        options = (self.kind, str(self.target), str(self.opt_level), ",".join(self.entries), source)
        return hashlib.sha256("\0".join(options).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledObject:
    """Compiled code of one request.

    Attributes:
        kind: As in the request.
        target: As in the request.
        entries: As in the request.
        key: Name in the kernel cache.
        data: The object's bytes, or PTX text in UTF-8.
    """

    kind: CompileKind
    target: Target
    entries: tuple[str, ...]
    key: str
    data: bytes = field(repr=False)
