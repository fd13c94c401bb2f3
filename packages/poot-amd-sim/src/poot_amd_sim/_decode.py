"""A program as functions: what each instruction does to waves, and where control goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_amd_sim._accesses import build_global, build_local, build_private, build_scalar_load
from poot_amd_sim._errors import UnknownInstruction
from poot_amd_sim._lanes import build_permute
from poot_amd_sim._matrix import build_matrix
from poot_amd_sim._operands import locate, registers_of
from poot_amd_sim._program import Instruction, Program
from poot_amd_sim._results import Compute
from poot_amd_sim._scalar import build_scalar
from poot_amd_sim._state import EXEC, VCC, Waves
from poot_amd_sim._vector import build_vector

__all__ = ["Branch", "Code", "decode"]

Run = Callable[[Waves], None]


@dataclass(frozen=True, slots=True)
class Branch:
    """A jump: where to, and for which of the selected waves (None: all)."""

    target: int
    taken: Callable[[Waves], Any] | None


@dataclass(frozen=True, slots=True)
class Code:
    """One step of a program.

    Attributes:
        text: For messages.
        run: What it does, or None.
        branch: Where it may go, or None.
        is_barrier: Whether waves wait here for their workgroup.
        is_end: Whether waves end here.
        registers: Those it touches, by the numbers of wait checks.
        loaded: Those of them that it loads and that return in order.
        counter: Counts these loads.
    """

    text: str
    run: Run | None
    branch: Branch | None
    is_barrier: bool
    is_end: bool
    registers: frozenset[int]
    loaded: frozenset[int]
    counter: str


_IN_ORDER = re.compile(r"(global|scratch|buffer|flat)_load_\w+|ds_(load|read)\w*")
_NOTHING = re.compile(
    r"s_(nop|clause|delay_alu|code_end|sendmsg|sleep|setprio|inst_prefetch|set_inst_prefetch\w*"
    r"|icache_inv|dcache_\w+|wait_alu|wait_expcnt|wait_idle|prefetch_inst\w*|setreg\w*"
    r"|waitcnt_depctr|denorm_mode|round_mode|barrier_signal|set_gpr_idx\w*|wait_event|version"
    r"|prefetch_\w+|set_vgpr_msb|wait_xcnt)"
    r"|buffer_(gl\d_inv|inv|wbl2|wbinvl1\w*)|global_(wb|wbinv|prefetch_b8)|v_nop"
)
# Which of the simulator's counters a hardware counter stands for.
_COUNTERS = {"vmcnt": ("vm",), "vscnt": ("vs",), "lgkmcnt": ("lds", "smem"), "loadcnt": ("vm",),
             "storecnt": ("vs",), "dscnt": ("lds",), "kmcnt": ("smem",)}  # fmt: skip
_CONDITIONS: dict[str, Callable[[Waves], Any]] = {
    "scc0": lambda w: ~w.scc[w.selected], "scc1": lambda w: w.scc[w.selected],
    "vccz": lambda w: w.scalar(VCC, w.lanes) == 0, "vccnz": lambda w: w.scalar(VCC, w.lanes) != 0,
    "execz": lambda w: w.scalar(EXEC, w.lanes) == 0,
    "execnz": lambda w: w.scalar(EXEC, w.lanes) != 0,
}  # fmt: skip


def decode(program: Program) -> list[Code]:
    """Return a program's steps as functions.

    Raises:
        UnknownInstruction: Naming the first instruction that is not known and its line.
    """
    found: list[Code] = []
    for step in program.steps:
        try:
            found.append(_code(program, step))
        except UnknownInstruction as error:
            raise UnknownInstruction(
                f"{program.name} ({program.arch}), line {step[0].line}: {error.message}"
            ) from None
    return found


def _code(program: Program, step: tuple[Instruction, ...]) -> Code:
    first = step[0]
    name = first.name
    text = f"{program.name}:{first.line}: " + " :: ".join(map(str, step))
    registers = registers_of(step)
    loaded, counter = frozenset[int](), ""
    if _IN_ORDER.fullmatch(name):
        loaded = registers_of((Instruction(name, first.operands[:1], {}, first.line),))
        counter = "lds" if name.startswith("ds_") else "vm"

    def code(run: Run | None = None, branch: Branch | None = None, **flags: bool) -> Code:
        return Code(
            text, run, branch, flags.get("is_barrier", False), flags.get("is_end", False), registers,
            loaded, counter,
        )  # fmt: skip

    if name == "s_endpgm":
        return code(is_end=True)
    if name in ("s_barrier", "s_barrier_wait"):
        return code(lambda w: w.check_barrier(text), is_barrier=True)
    if name == "s_barrier_signal":
        return code(lambda w: w.check_barrier(text))
    if name == "global_inv":  # counts as a load
        return code(lambda w: w.issue("vm"))
    if _NOTHING.fullmatch(name):
        return code()
    if name.startswith("s_wait"):
        return code(_wait(first))
    if name == "s_branch":
        return code(branch=Branch(program.labels[first.operands[0]], None))
    if name.startswith("s_cbranch_"):
        condition = _CONDITIONS.get(name.removeprefix("s_cbranch_"))
        if condition is None:
            raise UnknownInstruction(str(first))
        return code(branch=Branch(program.labels[first.operands[0]], condition))
    return code(_plain(program, step))


def _plain(program: Program, step: tuple[Instruction, ...]) -> Run:
    first = step[0]
    name = first.name
    if name.startswith("s_getpc"):
        place = locate(first.operands[0])
        assert place is not None
        return lambda w: w.put_scalar(place.index, np.uint64(0), 64)
    if name.startswith("s_load_"):
        return build_scalar_load(first)
    if name.startswith("ds_") and ("permute" in name or "swizzle" in name):
        return build_permute(first)
    if name.startswith("ds_"):
        return build_local(first)
    if name.startswith("global_"):
        return build_global(first)
    if name.startswith(("scratch_", "buffer_")):
        return build_private(first)
    if name.startswith(("v_wmma", "v_mfma")):
        return build_matrix(first, program.arch)
    if name.startswith("v_s_") or name.startswith("s_"):
        return build_scalar(first)
    if name.startswith("v_"):
        return _together([build_vector(part, program.arch) for part in step])
    raise UnknownInstruction(str(first))


def _together(parts: list[Compute]) -> Run:
    if len(parts) == 1:
        compute = parts[0]
        return lambda w: compute(w)()

    def run(waves: Waves) -> None:
        for put in [part(waves) for part in parts]:
            put()

    return run


def _wait(instruction: Instruction) -> Run:
    """Return the step of a wait; counters of mixed kinds help scalar loads only at zero."""
    name = instruction.name
    wanted: list[tuple[str, int]] = []
    if name == "s_waitcnt":
        text = " ".join(instruction.operands)
        wanted = [(kind, int(count)) for kind, count in re.findall(r"(\w+cnt)\((\d+)\)", text)]
    elif name == "s_waitcnt_vscnt":
        wanted = [("vscnt", int(instruction.operands[-1], 0))]
    else:
        kinds = name.removeprefix("s_wait_").split("_")
        value = int(instruction.operands[-1], 0)
        shift = 8 if len(kinds) > 1 else 0
        wanted = [(kinds[0], value >> shift)]
        if shift:
            wanted.append((kinds[1], value & 63))
    waits: list[tuple[str, int]] = []
    for kind, count in wanted:
        if kind in ("expcnt", "samplecnt", "bvhcnt"):
            continue
        if kind not in _COUNTERS:
            raise UnknownInstruction(str(instruction))
        waits += [(c, count) for c in _COUNTERS[kind] if c != "smem" or count == 0]

    def run(waves: Waves) -> None:
        for counter, count in waits:
            waves.wait(counter, count)

    return run
