"""Showing a program: its launches as text, and how long each takes beside the read bound."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor._engine import StepInputs
from poot_executor._load_host import row_bytes
from poot_executor._program import Program, ProgramLaunch
from poot_executor._program_engine import ProgramEngine
from poot_executor._runner import selected_launches
from poot_executor._weights import Matrix
from poot_kernelgen import (
    AttendRequest,
    ContractionRequest,
    GatherRequest,
    Request,
    RowProgram,
)

__all__ = ["LaunchTime", "explain", "time_launches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTime:
    """One launch of a step, measured.

    Attributes:
        label: Place in the model and what it does.
        kernel: Kind of kernel.
        seconds: Median time.
        weight_bytes: Bytes of weights that it reads.
        bound_s: Time of a pure read of these bytes at the bandwidth measured in the same run.
    """

    label: str
    kernel: str
    seconds: float
    weight_bytes: int
    bound_s: float


def explain(program: Program, *, all_layers: bool = False) -> str:
    """Return a program as text: memory, then each launch with what it reads and writes.

    Args:
        program: What to show.
        all_layers: Whether launches that only repeat an earlier layer's are shown too.
    """
    lines = [
        f"program {program.name} for {program.target}, precision {program.precision}",
        f"  {len(program.launches)} launches of {len(program.requests)} kernels, "
        f"{len(program.matrices)} matrices, {len(program.states)} states, "
        f"{program.arena_bytes / 1e6:.1f} MB of intermediates "
        f"({_logits_bytes(program) / 1e6:.1f} MB of them logits)",
    ]
    seen: set[tuple[int, ...]] = set()
    hidden = 0
    for number, launch in enumerate(program.launches):
        shape = (*launch.variants, hash(launch.role))
        if shape in seen and not all_layers:
            hidden += 1
            continue
        seen.add(shape)
        if hidden:
            lines.append(f"        {hidden} launches of kernels shown above")
            hidden = 0
        lines.append(_line(program, number, launch))
        lines += _details(program.requests[launch.variants[0]])
    if hidden:
        lines.append(f"        {hidden} launches of kernels shown above")
    return "\n".join(lines)


def _logits_bytes(program: Program) -> int:
    temp = program.temps[program.logits]
    return temp.row_bytes * program.max_rows[temp.symbol]


def _line(program: Program, number: int, launch: ProgramLaunch) -> str:
    operands: list[str] = []
    for operand in launch.operands:
        value = operand.value
        if operand.kind == "matrix":
            assert isinstance(value, int)
            operands.append(str(program.matrices[value]))
        elif operand.kind == "vector":
            assert isinstance(value, int)
            operands.append(program.vectors[value].name)
        elif operand.kind == "temp":
            operands.append(f"%{value}")
        elif operand.kind in {"slot", "state"}:
            operands.append(str(value))
    kind = describe(program.requests[launch.variants[0]], launch.role)
    return f"  {number:4d}  {launch.symbol}  {kind:<28} {launch.label}  ({', '.join(operands)})"


def describe(request: Request, role: str = "main") -> str:
    """Return the kind of a kernel in few words."""
    if isinstance(request, RowProgram):
        kinds = "+".join(dict.fromkeys(output.kind for output in request.outputs))
        return f"rows -> {kinds}"
    if isinstance(request, ContractionRequest):
        gated = " gated" if request.gated else ""
        return f"{request.weight.source} x {request.activation}{gated}"
    if isinstance(request, AttendRequest):
        window = "" if request.window is None else f" window {request.window}"
        return f"attend{window}" if role == "main" else f"attend {role}"
    if isinstance(request, GatherRequest):
        return f"gather {request.layout.source}"
    return type(request).__name__


def _details(request: Request) -> list[str]:
    if isinstance(request, RowProgram):
        ops = " ".join(node.op for node in request.nodes)
        return [f"          {ops}"] if ops else []
    if isinstance(request, ContractionRequest) and request.epilogue.nodes:
        ops = " ".join(node.op for node in request.epilogue.nodes)
        return [f"          epilogue: {ops}"]
    return []


def time_launches(
    engine: ProgramEngine, step: StepInputs, *, repeat: int = 5
) -> tuple[tuple[LaunchTime, ...], float]:
    """Return the time of each launch of a step, and the read bandwidth of the same run in GB/s.

    Args:
        engine: An engine over a device.
        step: The step to repeat; it writes the same keys and values each time.
        repeat: How often.

    Raises:
        DeviceError: If the engine runs on no device.
    """
    key, seconds = engine.time_step(step, repeat=repeat)
    bandwidth = engine.read_bandwidth_gb_s(max(engine.info.weight_bytes, 64 << 20))
    program = engine.program
    times = [
        _launch_time(program, launch, request, float(measured), bandwidth)
        for (launch, request), measured in zip(
            selected_launches(program, key), seconds.tolist(), strict=True
        )
    ]
    return tuple(times), bandwidth


def _launch_time(
    program: Program, launch: ProgramLaunch, request: int, seconds: float, bandwidth: float
) -> LaunchTime:
    # A gather reads a few rows of its matrix.
    is_product = isinstance(program.requests[request], ContractionRequest)
    matrices = [
        program.matrices[o.value]
        for o in launch.operands
        if o.kind == "matrix" and isinstance(o.value, int) and is_product
    ]
    weight_bytes = sum(map(_stored_bytes, matrices))
    return LaunchTime(
        label=launch.label,
        kernel=describe(program.requests[request], launch.role),
        seconds=seconds,
        weight_bytes=weight_bytes,
        bound_s=weight_bytes / (bandwidth * 1e9),
    )


def _stored_bytes(matrix: Matrix) -> int:
    return matrix.n * row_bytes(matrix.source, matrix.k)
