"""A GPU kernel as it is cached and handed to a device: its code and what a launch must know."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from poot_core import CompileError

__all__ = ["KernelPackage", "KernelSplit", "PackagedMap"]

_MAGIC = b"POOTGPU1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedMap:
    """An array that the launcher describes to the copy engine, see ``TensorMap`` of the targets.

    Attributes:
        parameter: Number of the array's parameter.
        shape: Its extents: sizes over the kernel's integer parameters, as text.
        box: Extents of one copy.
        itemsize: Bytes of an element.
    """

    parameter: int
    shape: tuple[str, ...]
    box: tuple[int, ...]
    itemsize: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSplit:
    """Work that a workgroup's subgroups share by chunks: their number is settled at launch.

    Attributes:
        chunks: How many chunks there are: a size over integer parameters, as text.
        max_subgroups: Most subgroups of a workgroup; fewer may be launched, results are the same.
        partial_bytes: Workgroup memory for each chunk; ``shared_bytes`` is that of each subgroup.
    """

    chunks: str
    max_subgroups: int
    partial_bytes: int

    def launch(self, chunks: int, shared_bytes: int, limit: int) -> tuple[int, int]:
        """Return subgroups and bytes of workgroup memory for a launch.

        >>> KernelSplit(chunks="", max_subgroups=8, partial_bytes=512).launch(14, 30000, 232448)
        (7, 217168)
        """
        count = max(1, min(self.max_subgroups, chunks))
        while count > 1 and count * shared_bytes + chunks * self.partial_bytes > limit:
            count -= 1
        # As few as take the same number of turns.
        count = -(-chunks // -(-chunks // count)) if chunks else 1
        return count, count * shared_bytes + chunks * self.partial_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPackage:
    """One kernel for a GPU.

    Attributes:
        name: Entry point.
        code: Text (PTX, WGSL) or binary (SPIR-V, a code object).
        threads: Invocations of a workgroup.
        shared_bytes: Workgroup memory to ask for at launch.
        parameters: Name and kind (``pointer`` or a scalar dtype's name) of each, in order.
        grid: Workgroups along each axis: sizes over integer parameters, as text.
        tensor_maps: Further parameters, after those.
        is_persistent: Workgroups loop over the grid: launch one for each multiprocessor, on x.
        cluster: Workgroups that run together; a launch is a multiple of them along x.
        is_overlapping: Whether the kernel waits itself for those before it, so that it may be
            started early.

    >>> package = KernelPackage(name="f", code=b"x", threads=32, parameters=(("n", "i64"),),
    ...     grid=("n",))
    >>> KernelPackage.decode(package.encode()) == package
    True
    """

    name: str
    code: bytes = field(repr=False)
    threads: int
    shared_bytes: int = 0
    parameters: tuple[tuple[str, str], ...] = ()
    grid: tuple[str, ...] = ()
    tensor_maps: tuple[PackagedMap, ...] = ()
    is_persistent: bool = False
    cluster: int = 1
    is_overlapping: bool = False
    split: KernelSplit | None = None

    def encode(self) -> bytes:
        """Return it as bytes."""
        facts = {k: v for k, v in asdict(self).items() if k != "code"}
        header = json.dumps(facts, sort_keys=True).encode()
        return _MAGIC + len(header).to_bytes(4, "little") + header + self.code

    @classmethod
    def decode(cls, data: bytes) -> KernelPackage:
        """Return what ``encode`` wrote.

        Raises:
            CompileError: If the bytes are something else.
        """
        start = len(_MAGIC) + 4
        length = int.from_bytes(data[len(_MAGIC) : start], "little")
        try:
            if data[: len(_MAGIC)] != _MAGIC:
                raise ValueError("it starts otherwise")
            facts = json.loads(data[start : start + length])
            maps = tuple(
                PackagedMap(
                    parameter=m["parameter"], shape=tuple(m["shape"]), box=tuple(m["box"]),
                    itemsize=m["itemsize"],
                )
                for m in facts.pop("tensor_maps")
            )  # fmt: skip
            parameters = tuple((str(n), str(k)) for n, k in facts.pop("parameters"))
            grid = tuple(facts.pop("grid"))
            split = facts.pop("split")
            return cls(
                code=bytes(data[start + length :]), tensor_maps=maps, parameters=parameters,
                grid=grid, split=None if split is None else KernelSplit(**split), **facts,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CompileError(f"{len(data)} bytes are no packaged GPU kernel: {error}") from error
