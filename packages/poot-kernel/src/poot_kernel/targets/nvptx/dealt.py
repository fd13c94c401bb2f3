"""The schedule of kernels with a dealt loop: warps share its turns, the first one does the rest.

As in ``split.py`` the kernel is lowered as if a workgroup were one warp, with shared memory of its own
for what waits on the way; ``shared_alloc`` is the workgroup's, and how turns hand over their results.
"""

from __future__ import annotations

from typing import cast

from poot_kernel.ir.core import KernelFunction, Op
from poot_kernel.ir.types import SharedType
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["DealtProducts", "most_turns", "suits_dealt"]


def suits_dealt(kernel: KernelFunction) -> bool:
    """Whether the schedule takes a kernel: tiles, and one dealt loop at its top."""
    return kernel.level == "tile" and len(_dealt(kernel)) == 1


def most_turns(kernel: KernelFunction) -> int:
    """Return how many warps can share the loop: the first extent of what they hand over."""
    for op in kernel.body.walk():
        if op.opcode == "shared_alloc":
            extent = cast(SharedType, op.result.type).shape[0].constant
            return min(8, extent or 1)
    return 1


def _dealt(kernel: KernelFunction) -> list[Op]:
    return [op for op in kernel.body.operations if op.opcode == "for" and op.attributes["dealt"]]


class DealtProducts(FragmentProducts):
    """Lowers a whole kernel, see the module.

    Attributes:
        block_bytes: Shared memory of the workgroup, beside that of each warp.
    """

    def __init__(self) -> None:
        self.block_bytes = 0

    def run(self, low: Lowering) -> None:
        """Lower the kernel."""
        machine = cast(PtxMachine, low.machine)
        low.handlers = {**low.handlers, "shared_alloc": self._allocate}
        operations = low.kernel.body.operations
        (loop,) = _dealt(low.kernel)
        place = operations.index(loop)
        for op in operations[:place]:
            low.operation(op)
        self._share(low, machine, loop)
        machine.line("bar.sync 0")
        first = machine.compare("eq", machine.warp(), low.arithmetic.word(0))

        def rest() -> None:
            for op in operations[place + 1 :]:
                low.operation(op)

        machine.branch(first, rest)

    def _share(self, low: Lowering, machine: PtxMachine, loop: Op) -> None:
        ops, index = low.arithmetic, low.index_dtype
        lower, upper, step = (low.index(v) for v in loop.operands[:3])
        own = ops.mul(ops.convert(machine.warp(), index), step)
        by = ops.mul(ops.convert(machine.num_warps(), index), step)
        counter = machine.variable(ops.add(lower, own))

        def turn() -> None:
            here = machine.read(counter)
            low.region(loop.regions[0], [here])
            machine.assign(counter, ops.add(here, by))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    def _allocate(self, low: Lowering, op: Op) -> None:
        found = cast(SharedType, op.result.type)
        total = found.dtype.itemsize
        for size in found.shape:
            assert size.constant is not None
            total *= size.constant
        start = low.arithmetic.add(cast(PtxMachine, low.machine).partials(), self.block_bytes)
        self.block_bytes += -(-total // 128) * 128
        low.set(op.result, (found, start))
