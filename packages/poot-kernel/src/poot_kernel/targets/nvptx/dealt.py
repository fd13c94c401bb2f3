"""The schedule of kernels with a dealt loop: warps share its turns, the first one does the rest.

As in ``split.py`` the kernel is lowered as if a workgroup were one warp, with shared memory of its own
for what waits on the way; ``shared_alloc`` is the workgroup's, and how turns hand over their results.

From sm_90 on several workgroups, a cluster along the grid's last axis, share the turns: one
multiprocessor fetches memory too slowly for a kernel of few workgroups. What turns hand over lies in
the first one's memory.
"""

from __future__ import annotations

from typing import cast

from poot_kernel.ir.core import KernelFunction, Op
from poot_kernel.ir.types import SharedType
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["DealtProducts", "most_turns", "suits_dealt"]

_MOST_WORKGROUPS = 4


def suits_dealt(kernel: KernelFunction) -> bool:
    """Whether the schedule takes a kernel: tiles, and one dealt loop at its top."""
    return kernel.level == "tile" and len(_dealt(kernel)) == 1


def most_turns(kernel: KernelFunction) -> int:
    """Return how many warps can share the loop: the first extent of what they hand over."""
    for op in kernel.body.walk():
        if op.opcode == "shared_alloc":
            extent = cast(SharedType, op.result.type).shape[0].constant
            return extent or 1
    return 1


def _dealt(kernel: KernelFunction) -> list[Op]:
    return [op for op in kernel.body.operations if op.opcode == "for" and op.attributes["dealt"]]


class DealtProducts(FragmentProducts):
    """Lowers a whole kernel, see the module.

    Attributes:
        workgroups: Workgroups of a cluster.
        block_bytes: Shared memory of the workgroup, beside that of each warp.
    """

    def __init__(self, kernel: KernelFunction, machine: PtxMachine) -> None:
        self.workgroups = min(_MOST_WORKGROUPS, most_turns(kernel))
        if machine.capability < 90 or len(kernel.grid) > 2:
            self.workgroups = 1
        self.block_bytes = 0
        self._blocks: dict[Op, tuple[SharedType, Register]] = {}

    @property
    def warps(self) -> int:
        """Most warps of a workgroup."""
        return 8 if self.workgroups == 1 else 2

    def _barrier(self, machine: PtxMachine) -> None:
        """Wait for all warps that share the kernel."""
        if self.workgroups == 1:
            machine.line("bar.sync 0")
            return
        machine.line("barrier.cluster.arrive.release")
        machine.line("barrier.cluster.wait.acquire")

    def run(self, low: Lowering) -> None:
        """Lower the kernel."""
        machine = cast(PtxMachine, low.machine)
        if self.workgroups > 1:  # a workgroup must run before others write its memory
            self._barrier(machine)
        store = low.handlers["store_tile"]

        def hand_over(low: Lowering, op: Op) -> None:
            self._hand_over(low, op, store)

        low.handlers = {
            **low.handlers,
            "shared_alloc": self._allocate,
            "store_tile": hand_over,
        }
        operations = low.kernel.body.operations
        (loop,) = _dealt(low.kernel)
        place = operations.index(loop)
        for op in operations[:place]:
            low.operation(op)
        self._share(low, machine, loop)
        self._barrier(machine)
        number = self._number(low, machine)
        low.handlers = {**low.handlers, "store_tile": store}
        for op, block in self._blocks.items():
            low.set(op.result, block)
        first = machine.compare("eq", number, low.arithmetic.word(0))

        def rest() -> None:
            for op in operations[place + 1 :]:
                low.operation(op)

        machine.branch(first, rest)

    def _number(self, low: Lowering, machine: PtxMachine) -> Register:
        """Return the warp's number among all that share the kernel."""
        if self.workgroups == 1:
            return machine.warp()
        before = low.arithmetic.mul(machine.cluster_rank(), machine.num_warps())
        return low.arithmetic.add(before, machine.warp())

    def _share(self, low: Lowering, machine: PtxMachine, loop: Op) -> None:
        ops, index = low.arithmetic, low.index_dtype
        lower, upper, step = (low.index(v) for v in loop.operands[:3])
        own = ops.mul(ops.convert(self._number(low, machine), index), step)
        warps = ops.mul(machine.num_warps(), self.workgroups)
        by = ops.mul(ops.convert(warps, index), step)
        counter = machine.variable(ops.add(lower, own))

        def turn() -> None:
            here = machine.read(counter)
            low.region(loop.regions[0], [here])
            machine.assign(counter, ops.add(here, by))

        machine.loop(lambda: machine.compare("lt", machine.read(counter), upper), turn)

    def _allocate(self, low: Lowering, op: Op) -> None:
        found = cast(SharedType, op.result.type)
        machine = cast(PtxMachine, low.machine)
        total = found.dtype.itemsize
        for size in found.shape:
            assert size.constant is not None
            total *= size.constant
        start = low.arithmetic.add(machine.partials(), self.block_bytes)
        self.block_bytes += -(-total // 128) * 128
        self._blocks[op] = found, start
        if self.workgroups > 1:
            start = machine.result("mapa.shared::cluster.u32", start.dtype, start, 0)
        low.set(op.result, (found, start))

    def _hand_over(self, low: Lowering, op: Op, store: Handler) -> None:
        """Store a tile, where it goes into the first workgroup's memory by the cluster's way."""
        machine = cast(PtxMachine, low.machine)
        machine.is_remote = self.workgroups > 1 and op.operands[0].definition in self._blocks
        store(low, op)
        machine.is_remote = False
