"""Which assembly a code object came from: the compile service of a simulated device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from poot_amd_sim._program import Program, parse_programs
from poot_kernel.compile import CompiledObject, CompileRequest, CompileService, KernelCache

__all__ = ["SimulatedCompileService", "find_programs", "record_image"]

_KIND = "amd-assembly"


class SimulatedCompileService(CompileService):
    """Compiles as its parent does, and keeps the assembly text of every AMD object in the cache."""

    def compile(self, requests: Sequence[CompileRequest]) -> list[CompiledObject]:
        """Return the compiled objects of a batch, in its order."""
        found = super().compile(requests)
        objects = [
            (request, compiled)
            for request, compiled in zip(requests, found, strict=True)
            if request.kind == "llvm-amdgcn-object"
            and self.cache.get(_KIND, _key(compiled.data)) is None
        ]
        texts = super().compile(
            [replace(request, kind="llvm-amdgcn-assembly") for request, _ in objects]
        )
        for (_, compiled), text in zip(objects, texts, strict=True):
            record_image(self.cache, compiled.data, text.data)
        return found


def record_image(cache: KernelCache, image: bytes, text: bytes) -> None:
    """Remember the assembly of an image, such as of a linked code object."""
    cache.put(_KIND, _key(image), text)


def find_programs(cache: KernelCache, image: bytes) -> dict[str, Program] | None:
    """Return the kernels of an image, or None if its assembly was not recorded."""
    text = cache.get(_KIND, _key(image))
    return None if text is None else parse_programs(text.decode())


def _key(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()
