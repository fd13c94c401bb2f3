"""Running a grid: workgroups in batches, waves in several orders, barriers."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from poot_amd_sim._decode import Code, decode
from poot_amd_sim._errors import SimulationFault
from poot_amd_sim._memory import Memory
from poot_amd_sim._program import Program
from poot_amd_sim._state import TTMP, Waves

__all__ = ["WAVE_ORDERS", "WaveOrder", "dispatch", "pack_arguments"]

WaveOrder = Literal["lockstep", "ascending", "descending", "random"]
WAVE_ORDERS: tuple[WaveOrder, ...] = ("lockstep", "ascending", "descending", "random")
"""``lockstep`` runs all waves together; the others run one wave of each workgroup to its next
barrier or end, in that order, ``random`` a few instructions at a time."""

_BATCH_BYTES = 96 << 20
_BATCH_WAVES = 1024
_STEPS = 1 << 26  # of one batch; more is taken for a loop without end


@functools.lru_cache(maxsize=256)
def _decoded(key: int, program: _Held) -> tuple[Code, ...]:
    _ = key
    return tuple(decode(program.program))


@dataclass(frozen=True, eq=False)
class _Held:
    program: Program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.program is self.program


def pack_arguments(
    program: Program,
    values: Sequence[bytes],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
) -> bytes:
    """Return a kernel's argument block: given values where declared, then what the runtime adds.

    Raises:
        SimulationFault: If the number or a size of the values does not fit the kernel.
    """
    # The runtime rounds the block up, and scalar loads may reach beyond its last argument.
    packed = bytearray(-(-program.descriptor["kernarg_size"] // 64) * 64)
    hidden: dict[str, int] = {}
    for axis, letter in enumerate("xyz"):
        hidden[f"hidden_block_count_{letter}"] = grid[axis]
        hidden[f"hidden_group_size_{letter}"] = block[axis]
        hidden[f"hidden_remainder_{letter}"] = 0
    hidden["hidden_grid_dims"] = 3
    given = list(values)
    for argument in program.arguments:
        if argument.kind.startswith("hidden_"):
            value = hidden.get(argument.kind, 0).to_bytes(argument.size, "little")
        else:
            if not given:
                raise SimulationFault(f"{program.name!r} takes more arguments", kind="bounds")
            value = given.pop(0)
        if len(value) != argument.size:
            raise SimulationFault(
                f"{program.name!r} takes {argument.size} bytes at {argument.offset}, got {len(value)}",
                kind="bounds",
            )
        packed[argument.offset : argument.offset + argument.size] = value
    if given:
        raise SimulationFault(f"{program.name!r} takes {len(given)} arguments less", kind="bounds")
    return bytes(packed)


def dispatch(
    program: Program, memory: Memory, arguments: bytes, grid: tuple[int, int, int],
    block: tuple[int, int, int], *, order: WaveOrder = "lockstep", seed: int = 0,
    shared_bytes: int = 0,
) -> int:  # fmt: skip
    """Run a kernel over a grid of workgroups and return how many wave instructions ran.

    Args:
        program: The kernel.
        memory: What its addresses mean.
        arguments: Its argument block, as ``pack_arguments`` makes it.
        grid: Workgroups by axis.
        block: Invocations of a workgroup by axis.
        order: In which waves take turns.
        seed: Of poison and of the random order.
        shared_bytes: Workgroup memory beyond what the kernel declares.

    Raises:
        SimulationFault: If the kernel leaves its buffers, reads what it did not wait for, meets a
            barrier that some of its waves never reach, or does not end.
        UnknownInstruction: If the interpreter does not know one of its instructions.
    """
    total = grid[0] * grid[1] * grid[2]
    if total == 0:
        return 0
    code = _decoded(id(program), _Held(program))
    rng = np.random.default_rng(seed)
    place = memory.allocate(len(arguments), "kernel arguments")
    held: list[int] = [] if place is None else [place]
    symbols: dict[str, int] = {}
    for name, data in program.data.items():
        at = memory.allocate(len(data), name)
        if at is not None:
            held.append(at)
            symbols[name] = at
            view = memory.block(at, len(data))
            assert view is not None
            view[:] = np.frombuffer(data, np.uint8)
    if len(held) != 1 + len(program.data):
        raise SimulationFault("no memory for kernel arguments and constants", kind="bounds")
    view = memory.block(held[0], len(arguments))
    assert view is not None
    view[:] = np.frombuffer(arguments, np.uint8)
    launch = _Launch(program, code, memory, held[0], symbols, grid, block, shared_bytes)
    count = 0
    try:
        with np.errstate(all="ignore"):
            for first in range(0, total, launch.batch):
                last = min(total, first + launch.batch)
                count += launch.run(range(first, last), order, rng)
    finally:
        for at in held:
            memory.release(at)
    return count


class _Launch:
    """One dispatch's constants, and the batches that it runs."""

    def __init__(
        self, program: Program, code: tuple[Code, ...], memory: Memory, arguments: int,
        symbols: dict[str, int], grid: tuple[int, int, int], block: tuple[int, int, int],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        self.program, self.code, self.memory, self.arguments = program, code, memory, arguments
        self.symbols, self.grid, self.block = symbols, grid, block
        descriptor = program.descriptor
        lanes = program.wave_size
        invocations = block[0] * block[1] * block[2]
        self.waves_each = -(-invocations // lanes)
        self.invocations = invocations
        self.accumulators = descriptor.get("accum_offset", 0)
        self.num_vectors = max(descriptor["next_free_vgpr"], 8) + 1
        self.local_bytes = -(-(descriptor["group_segment_fixed_size"] + shared_bytes) // 4) * 4
        each = self.waves_each * self.num_vectors * lanes * 4
        self.batch = max(1, min(_BATCH_WAVES // self.waves_each, _BATCH_BYTES // each))

    def run(self, groups: range, order: WaveOrder, rng: np.random.Generator) -> int:
        """Run a batch of workgroups to their end."""
        count = len(groups)
        local = np.full((count, max(self.local_bytes, 4)), 0xC5, np.uint8)
        local.view(np.uint32)[:] = 0x7FC00000 | int(rng.integers(1, 1 << 22))
        local = local[:, : self.local_bytes] if self.local_bytes else local[:, :0]
        local = np.ascontiguousarray(local)
        if order == "lockstep":
            numbers = [np.tile(np.arange(self.waves_each), count)]
            owners = [np.repeat(np.arange(count), self.waves_each)]
        else:
            numbers = [np.full(count, n) for n in range(self.waves_each)]
            owners = [np.arange(count)] * self.waves_each
        gangs = [
            self._gang(np.array(list(groups))[own], own, number, local, rng)
            for own, number in zip(owners, numbers, strict=True)
        ]
        return _Schedule(self.code, gangs, count, self.waves_each).run(order, rng)

    def _gang(self, flat: Any, owner: Any, number: Any, local: Any, rng: Any) -> Waves:
        program, lanes = self.program, self.program.wave_size
        waves = Waves(
            count=len(flat), lanes=lanes, num_vectors=self.num_vectors,
            first_agpr=self.accumulators, group=owner, local=local, memory=self.memory, poison=rng,
            symbols=self.symbols, is_stores_in_vm=program.arch.startswith("gfx9"),
            private_bytes=-(-program.descriptor.get("private_segment_fixed_size", 0) // 4) * 4,
        )  # fmt: skip
        lane = number[:, None] * lanes + np.arange(lanes)
        waves.put_lane_bits(126, lane < self.invocations)
        x, y = lane % self.block[0], lane // self.block[0] % self.block[1]
        z = lane // (self.block[0] * self.block[1])
        waves.put_all(0, (z << 20 | y << 10 | x).astype(np.uint32))
        gx, gy = self.grid[0], self.grid[1]
        places = [flat % gx, flat // gx % gy, flat // (gx * gy)]
        self._scalars(waves, places)
        return waves

    def _scalars(self, waves: Waves, places: list[Any]) -> None:
        descriptor = self.program.descriptor
        at = 0
        if descriptor.get("user_sgpr_private_segment_buffer"):
            at += 4
        for name in ("dispatch_ptr", "queue_ptr"):
            if descriptor.get(f"user_sgpr_{name}"):
                raise SimulationFault(f"the kernel asks for {name}", kind="bounds")
        if descriptor.get("user_sgpr_kernarg_segment_ptr"):
            waves.put_scalar(at, np.uint64(self.arguments), 64)
            at += 2
        preload = descriptor.get("user_sgpr_kernarg_preload_length", 0)
        for number in range(preload):
            offset = 4 * (number + descriptor.get("user_sgpr_kernarg_preload_offset", 0))
            word = self.memory.block(self.arguments + offset, 4)
            assert word is not None
            waves.put_scalar(at + number, np.uint32(struct.unpack("<I", word.tobytes())[0]))
        if self.program.arch.startswith("gfx12"):
            waves.put_scalar(TTMP + 9, places[0].astype(np.uint32))
            waves.put_scalar(TTMP + 7, (places[1] | places[2] << 16).astype(np.uint32))
            return
        at = descriptor["user_sgpr_count"]
        for letter, place in zip("xyz", places, strict=True):
            if descriptor.get(f"system_sgpr_workgroup_id_{letter}"):
                waves.put_scalar(at, place.astype(np.uint32))
                at += 1


class _Schedule:
    """Lets gangs of waves take turns and opens barriers."""

    def __init__(
        self, code: tuple[Code, ...], gangs: list[Waves], count: int, waves_each: int
    ) -> None:
        self.code, self.gangs, self.count, self.waves_each = code, gangs, count, waves_each
        self.executed = 0
        self.steps = 0

    def run(self, order: WaveOrder, rng: np.random.Generator) -> int:
        """Run until all waves have ended."""
        while True:
            ready = [g for g in self.gangs if not (g.is_waiting | g.is_done).all()]
            if not ready:
                if all(g.is_done.all() for g in self.gangs):
                    return self.executed
                self._open()
                continue
            if order == "random":
                self._turn(ready[int(rng.integers(len(ready)))], int(rng.integers(1, 40)))
            else:
                self._turn(ready[-1] if order == "descending" else ready[0], _STEPS)

    def _open(self) -> None:
        """Let those workgroups pass whose waves have all arrived."""
        arrived = np.zeros(self.count, np.int64)
        ended = np.zeros(self.count, np.int64)
        for gang in self.gangs:
            arrived += np.bincount(gang.group[gang.is_waiting], minlength=self.count)
            ended += np.bincount(gang.group[gang.is_done], minlength=self.count)
        complete = (arrived > 0) & (arrived + ended == self.waves_each)
        assert complete.any(), "waves wait and none is ready, so a workgroup must be complete"
        if (complete & (ended > 0)).any():
            raise SimulationFault("some waves ended while others wait at a barrier", kind="barrier")
        for gang in self.gangs:
            gang.is_waiting &= ~complete[gang.group]

    def _turn(self, gang: Waves, budget: int) -> None:
        """Run a gang until nothing of it is ready or the budget is used up."""
        while budget > 0:
            ready = np.flatnonzero(~(gang.is_waiting | gang.is_done))
            if not len(ready):
                return
            places = gang.pc[ready]
            place = int(places.min())
            here = ready[places == place]
            others = places[places > place]
            # Lagging waves catch up first, so that waves that went apart meet again.
            limit = int(others.min()) if len(others) else len(self.code) + 1
            gang.select(here)
            budget -= self._straight(gang, here, place, limit, budget)

    def _straight(self, gang: Waves, here: Any, place: int, limit: int, budget: int) -> int:
        code, used = self.code, 0
        while True:
            step = code[place]
            if gang.maybe_pending and not gang.maybe_pending.isdisjoint(step.registers):
                gang.check(step.registers, step.text, step.loaded, step.counter)
            used += 1
            self.steps += 1
            if step.run is not None:
                step.run(gang)
            place += 1
            if step.branch is not None:
                taken = True if step.branch.taken is None else step.branch.taken(gang)
                if np.all(taken):
                    place = step.branch.target
                elif np.any(taken):
                    gang.pc[here] = np.where(taken, step.branch.target, place)
                    break
            elif step.is_barrier:
                gang.is_waiting[here] = True
                gang.pc[here] = place
                break
            elif step.is_end:
                gang.is_done[here] = True
                break
            if place >= limit or used >= budget:
                gang.pc[here] = place
                break
        self.executed += used * len(here)
        if self.steps > _STEPS:
            raise SimulationFault("the kernel does not end", kind="runaway")
        return used
