"""The schedule of kernels with dealt loops: warps share their turns, the first one does the rest.

As in ``split.py`` the kernel is lowered as if a workgroup were one warp, with shared memory of its own
for what waits on the way; ``shared_alloc`` is the workgroup's, and how turns hand over their results.

From sm_90 on several workgroups, a cluster along the grid's last axis, share the turns: one
multiprocessor fetches memory too slowly for a kernel of few workgroups. What turns hand over lies in
the first one's memory.

Integers in arrays that a kernel only reads are what a step is given: no kernel writes them, and they
are read while earlier kernels end.
"""

from __future__ import annotations

from typing import cast

from poot_kernel.ir.core import KernelFunction, Op
from poot_kernel.ir.types import ArrayType, SharedType
from poot_kernel.targets.common.lowering import Handler, Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["DealtProducts", "most_turns", "suits_dealt"]

_MOST_WORKGROUPS = 4


def suits_dealt(kernel: KernelFunction) -> bool:
    """Whether the schedule takes a kernel: tiles, and dealt loops at its top."""
    return kernel.level == "tile" and bool(_dealt(kernel))


def most_turns(kernel: KernelFunction) -> int:
    """Return how many warps can share the loop: the first extent of what they hand over."""
    for op in kernel.body.walk():
        if op.opcode == "shared_alloc":
            extent = cast(SharedType, op.result.type).shape[0].constant
            return extent or 1
    return 1


def _dealt(kernel: KernelFunction) -> list[Op]:
    return [op for op in kernel.body.operations if op.opcode == "for" and op.attributes["dealt"]]


def _reads_results(op: Op) -> bool:
    """Whether an operation reads what earlier kernels may write."""
    if op.opcode not in ("load", "copy", "copy_rows"):
        return False
    memory = op.operands[0].type
    is_given = isinstance(memory, ArrayType) and memory.access == "r" and memory.dtype.is_integer
    return not is_given


class DealtProducts(FragmentProducts):
    """Lowers a whole kernel, see the module.

    Attributes:
        workgroups: Workgroups of a cluster.
        block_bytes: Shared memory of the workgroup, beside that of each warp.
    """

    def __init__(self, kernel: KernelFunction, machine: PtxMachine, *, overlaps: bool) -> None:
        self.overlaps = overlaps
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
        operations, loops = low.kernel.body.operations, _dealt(low.kernel)
        end, waits = operations.index(loops[-1]) + 1, self.overlaps
        for op in operations[:end]:
            if waits and (op in loops or _reads_results(op)):
                machine.line("griddepcontrol.wait")
                waits = False
            if op not in loops:
                low.operation(op)
                continue
            machine.is_remote = self.workgroups > 1 and self._takes(op)
            self._share(low, machine, op)
            machine.is_remote = False
            # Nobody leaves while others may still use the first workgroup's memory.
            self._barrier(machine)
        low.handlers = {**low.handlers, "store_tile": store}
        for op, block in self._blocks.items():
            low.set(op.result, block)
        if rest := operations[end:]:
            first = machine.compare("eq", self._number(low, machine), low.arithmetic.word(0))

            def emit() -> None:
                for op in rest:
                    low.operation(op)

            machine.branch(first, emit)

    def _takes(self, loop: Op) -> bool:
        """Whether a loop reads what turns of another have handed over."""
        return any(
            op.opcode == "copy" and op.operands[0].definition in self._blocks
            for op in loop.regions[0].walk()
        )

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
        before = machine.is_remote
        machine.is_remote = self.workgroups > 1 and op.operands[0].definition in self._blocks
        store(low, op)
        machine.is_remote = before
