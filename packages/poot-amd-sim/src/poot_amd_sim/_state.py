"""Registers of many waves that run together, and what they may not touch yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poot_amd_sim._errors import SimulationFault

if TYPE_CHECKING:
    from poot_amd_sim._memory import Memory

__all__ = ["EXEC", "M0", "NULL", "SGPR_BASE", "TTMP", "VCC", "Waves"]

VCC, TTMP, M0, NULL, EXEC = 106, 108, 124, 125, 126
SGPR_BASE = 4096  # in register numbers of wait checks; AGPRs start at 1024
_COUNTERS = ("vm", "vs", "lds", "smem")


class Waves:
    """A gang of waves at possibly different places; instructions act on those selected.

    Attributes:
        vectors: (registers, waves, lanes) u32; AGPRs follow the VGPRs from ``first_agpr``.
        scalars: (128, waves) u32.
        scc: (waves,) bool.
        active: (waves, lanes) bool, what EXEC holds.
        group: (waves,) workgroup of each wave within the LDS block.
        private: (waves, lanes, bytes) u8, scratch of each invocation.
        local: (workgroups, bytes) u8, workgroup memory of all.
        selected: All waves as a slice, or the indices of some.
        mask: ``active`` of the selected.
        is_full: Whether ``mask`` is all true.
    """

    def __init__(
        self, *, count: int, lanes: int, num_vectors: int, first_agpr: int, group: NDArray[np.intp],
        local: NDArray[np.uint8], memory: Memory, poison: np.random.Generator, symbols: dict[str, int],
        is_stores_in_vm: bool, private_bytes: int,
    ) -> None:  # fmt: skip
        # Poison is a NaN as f32, far outside of every buffer as an address, and differs by register.
        self.vectors = np.empty((num_vectors, count, lanes), np.uint32)
        self.vectors[:] = 0x7FC00000 | poison.integers(1, 1 << 22, (num_vectors, 1, 1), np.uint32)
        self.scalars = np.empty((128, count), np.uint32)
        self.scalars[:] = 0x7FC00000 | poison.integers(1, 1 << 22, (128, 1), np.uint32)
        self.first_agpr = first_agpr
        self.scc = np.zeros(count, bool)
        self.active = np.ones((count, lanes), bool)
        self.group, self.local, self.memory, self.symbols = group, local, memory, symbols
        self.private = np.full((count, lanes, max(4, private_bytes)), 0xC5, np.uint8)
        self.count, self.lanes = count, lanes
        self.lane_numbers = np.arange(lanes, dtype=np.uint32)
        self.pc = np.zeros(count, np.int64)
        self.is_waiting = np.zeros(count, bool)
        self.is_done = np.zeros(count, bool)
        self.stores_in_vm = is_stores_in_vm
        self.issued = {name: np.zeros(count, np.int64) for name in _COUNTERS}
        self.arrived = {name: np.zeros(count, np.int64) for name in _COUNTERS}
        self.pending: dict[str, dict[int, NDArray[np.int64]]] = {n: {} for n in _COUNTERS}
        self.maybe_pending: set[int] = set()
        self.last_local = np.zeros(count, np.int64)  # exchanges of lanes touch no memory
        self.select(np.arange(count))

    def select(self, waves: NDArray[np.intp]) -> None:
        """Choose the waves that the next instructions act on."""
        self.is_all = len(waves) == self.count
        self.selected: Any = slice(None) if self.is_all else waves
        self.num_selected = len(waves)
        self.refresh()

    def refresh(self) -> None:
        """Take the mask of the selected waves from ``active``."""
        self.mask = self.active if self.is_all else self.active[self.selected]
        self.is_full = bool(self.mask.all())

    # ---- registers

    def put(self, register: int, value: Any) -> None:
        """Write u32 to a vector register in active lanes."""
        if self.is_full:
            self.vectors[register, self.selected] = value
        elif self.is_all:
            np.copyto(self.vectors[register], value, where=self.mask)
        else:
            held = self.vectors[register, self.selected]
            np.copyto(held, value, where=self.mask)
            self.vectors[register, self.selected] = held

    def put_all(self, register: int, value: Any) -> None:
        """Write u32 to a vector register in all lanes."""
        self.vectors[register, self.selected] = value

    def put_scalar(self, register: int, value: Any, width: int = 32) -> None:
        """Write u32, or u64 to two registers, of the selected waves."""
        if register == NULL:
            return
        if width == 32:
            self.scalars[register, self.selected] = value
        else:
            value = np.asarray(value, np.uint64)
            self.scalars[register, self.selected] = value.astype(np.uint32)
            high = (value >> np.uint64(32)).astype(np.uint32)
            self.scalars[register + 1, self.selected] = high
        if register >= EXEC:
            self.active[self.selected] = self.lane_bits(EXEC)
            self.refresh()

    def scalar(self, register: int, width: int = 32) -> Any:
        """Return (selected,) u32 or u64."""
        if register == NULL:
            return np.zeros(self.num_selected, np.uint32 if width == 32 else np.uint64)
        low = self.scalars[register, self.selected]
        if width == 32:
            return low
        high = self.scalars[register + 1, self.selected].astype(np.uint64)
        return low | high << np.uint64(32)

    def lane_bits(self, register: int) -> NDArray[np.bool_]:
        """Return a lane mask in scalar registers as (selected, lanes) bool."""
        words = [self.scalars[register + i, self.selected] for i in range(self.lanes // 32)]
        packed = np.stack(words, axis=1) if len(words) > 1 else words[0][:, None]
        flat = np.ascontiguousarray(packed).view(np.uint8)
        return np.unpackbits(flat, axis=1, bitorder="little").view(bool)

    def put_lane_bits(self, register: int, bits: Any) -> None:
        """Write (selected, lanes) bool as a lane mask to scalar registers."""
        full = np.broadcast_to(bits, (self.num_selected, self.lanes))
        words = np.packbits(full, axis=1, bitorder="little").view(np.uint32)
        if register == NULL:
            return
        for number in range(self.lanes // 32):
            self.scalars[register + number, self.selected] = words[:, number]
        if register >= EXEC:
            self.active[self.selected] = full
            self.refresh()

    # ---- outstanding memory operations

    def issue(self, counter: str, registers: Iterable[int] = ()) -> None:
        """Count an operation; its result registers are out of reach until it is waited for."""
        self.issued[counter][self.selected] += 1
        for register in registers:
            held = self.pending[counter].get(register)
            if held is None:
                held = self.pending[counter][register] = np.zeros(self.count, np.int64)
            held[self.selected] = self.issued[counter][self.selected]
            self.maybe_pending.add(register)

    def issue_local(self, registers: Iterable[int]) -> None:
        """Count an access to workgroup memory, which barriers order."""
        self.issue("lds", registers)
        self.last_local[self.selected] = self.issued["lds"][self.selected]

    def wait(self, counter: str, left: int) -> None:
        """Wait until at most ``left`` operations of a counter that returns in order are out."""
        reached = self.issued[counter][self.selected] - left
        known = self.arrived[counter][self.selected]
        self.arrived[counter][self.selected] = np.maximum(known, reached)

    def check(self, registers: frozenset[int], text: str, loaded: frozenset[int], own: str) -> None:
        """Fault if an operation touches a register whose load was not waited for.

        Args:
            registers: What it reads or writes.
            text: The operation.
            loaded: What it loads: such loads return in order, so that it may follow one of its own
                counter to the same register (the other half of it, say).
            own: That counter.
        """
        for register in self.maybe_pending & registers:
            settled = True
            for counter, held in self.pending.items():
                order = held.get(register)
                if order is None:
                    continue
                late = order > self.arrived[counter]
                if late[self.selected].any():
                    if counter == own and register in loaded:
                        settled = False
                        continue
                    kind = "s" if register >= SGPR_BASE else "v"
                    raise SimulationFault(
                        f"{text}: {kind}{register % SGPR_BASE} belongs to a load ({counter}) that "
                        "was not waited for",
                        kind="wait",
                    )
                settled &= not late.any()
            if settled:
                self.maybe_pending.discard(register)

    def check_barrier(self, text: str) -> None:
        """Fault if workgroup memory operations are out when a wave arrives at a barrier."""
        out = self.last_local[self.selected] > self.arrived["lds"][self.selected]
        if out.any():
            raise SimulationFault(
                f"{text}: workgroup memory operations were not waited for before the barrier",
                kind="wait",
            )
