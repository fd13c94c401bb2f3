"""A ring of slots in shared memory: one warp fills them by TMA, warpgroups empty them."""

from __future__ import annotations

from typing import cast

from poot_core import boolean
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.nvptx.machine import PtxMachine

__all__ = ["ALIGNMENT", "GROUP", "Ring"]

GROUP = 128  # threads of a warpgroup
ALIGNMENT = 1024  # of slots: a swizzle repeats within so many bytes


class Ring:
    """Barriers of the slots, and the place in the ring, which goes on from loop to loop.

    Args:
        low: The lowering.
        stages: Slots; fewer may be used.
        size: Bytes of all slots.
    """

    def __init__(self, low: Lowering, stages: int, size: int) -> None:
        self.low, self.machine = low, cast(PtxMachine, low.machine)
        self.stages = self.num_barriers = stages
        ops = low.arithmetic
        block = low.allocate("ring", size + 2 * ALIGNMENT)
        self.base = ops.integer("and", ops.add(block, ALIGNMENT - 1), -ALIGNMENT & 0xFFFFFFFF)
        self.full, self.empty = ops.add(self.base, size), ops.add(self.base, size + 8 * stages)
        self.slot = self.machine.variable(ops.word(0))
        self.parity = self.machine.variable(ops.word(0))

    def prepare(self, num_consumers: int | Register) -> None:
        """Initialise the barriers: one arrival fills a slot, each consumer's one empties it."""
        m = self.machine
        consumers = num_consumers.code if isinstance(num_consumers, Register) else num_consumers
        for slot in range(self.num_barriers):
            for base, count in ((self.full, 1), (self.empty, consumers)):
                m.line(f"mbarrier.init.shared::cta.b64 [{base.code}+{8 * slot}], {count}")
        m.line("fence.mbarrier_init.release.cluster")
        m.line("fence.proxy.async.shared::cta")

    def barrier_of(self, base: Register, slot: Register) -> Register:
        """Return a slot's barrier."""
        return self.low.arithmetic.add(self.low.arithmetic.mul(slot, 8), base)

    def wait(self, base: Register, slot: Register, parity: Register) -> None:
        """Wait until a barrier's phase ends."""
        m, label = self.machine, self.machine.label()
        m.place(label)
        at = self.barrier_of(base, slot)
        done = m.result("mbarrier.try_wait.parity.shared::cta.b64", boolean, f"[{at.code}]", parity)
        m.line(f"@!{done.code} bra {label}")

    def wait_empty(self, slot: Register) -> None:
        """Wait until a slot may be filled: in the first round each is, the phase before has ended."""
        turned = self.machine.binary(
            "xor", self.machine.read(self.parity), self.low.arithmetic.word(1)
        )
        self.wait(self.empty, slot, turned)

    def expect(self, slot: Register, num_bytes: int) -> None:
        """Say how many bytes fill a slot."""
        full = self.barrier_of(self.full, slot)
        self.machine.line(
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full.code}], {num_bytes}"
        )

    def advance(self) -> None:
        """Go to the next slot; the parity turns with each round."""
        m, ops = self.machine, self.low.arithmetic
        following = ops.add(m.read(self.slot), 1)
        wraps = m.compare("eq", following, ops.word(self.stages))
        m.assign(self.slot, m.select(wraps, ops.word(0), following))
        turned = m.binary("xor", m.read(self.parity), m.select(wraps, ops.word(1), ops.word(0)))
        m.assign(self.parity, turned)
