"""Times of the row, attention and argmax kernels that a model's plan asks for, on one core.

Run: ``.venv/bin/python benchmarks/row_kernels.py MODEL.gguf [--rows 256] [--context 4096]``.
Times are processor time of this thread, the best of several runs, so that neighbours disturb them
less; the peak of fused multiply-adds is measured in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from poot_core import DeviceCaps, Settings, dtype_by_name, f32
from poot_executor import PlanOptions, compile_graph
from poot_graph_ir import TraceOptions
from poot_kernel import IRBuilder, KernelFunction, compile_kernels
from poot_kernel.compile import CompileService, host_target, load_objects
from poot_kernelgen import AttendRequest, RowProgram, generate, reference
from poot_load import open_checkpoint
from poot_models import load_family

TARGET = host_target(Settings())
CAPS = DeviceCaps(
    name="benchmark", vector_bytes=64, subgroup_size=16, num_workers=1, shared_bytes=1 << 20,
    memory_bytes=1 << 33,
)  # fmt: skip
RNG = np.random.default_rng(0)
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Kernel:
    """One compiled kernel with its arguments."""

    def __init__(self, service: CompileService, function: KernelFunction) -> None:
        start = time.perf_counter()
        (compiled,) = compile_kernels([function], TARGET, service)
        self.compile_ms = (time.perf_counter() - start) * 1e3
        self._code = load_objects([compiled.data], TARGET.arch)
        self._entry = ENTRY(self._code.symbols[0][function.name])
        self._scratch = np.zeros(4 << 20, np.uint8)

    def best(self, arguments: Sequence[Any], tiles: int, repeat: int = 40) -> float:
        """Return the least processor time of a call over ``tiles`` workgroups, in seconds."""
        packed = b"".join(
            struct.pack("<Q", a.ctypes.data) if isinstance(a, np.ndarray) else struct.pack("<q", a)
            for a in arguments
        )
        slots = ctypes.create_string_buffer(packed)
        base = self._scratch.ctypes.data + -self._scratch.ctypes.data % 64
        calls, least = 1, math.inf
        for _ in range(repeat):
            start = time.thread_time()
            for _ in range(calls):
                self._entry(ctypes.addressof(slots), 0, tiles, base)
            spent = (time.thread_time() - start) / calls
            least = min(least, spent)
            calls = max(1, min(2000, int(1e-3 / max(spent, 1e-7))))
        return least


def fma_peak(service: CompileService) -> float:
    """Return operations a second of a loop of fused multiply-adds on registers."""
    b = IRBuilder("peak", level="lane", grid=[1])
    x, y = b.array("x", f32, [256]), b.array("y", f32, [256], access="w")
    with b.foreach(0, 16) as lanes:
        start = [b.load(x, b.add(lanes.index, 16 * i)) for i in range(12)]
        factor = b.load(x, lanes.index)
        with b.for_(0, 20000, 1, start) as loop:
            loop.yield_(*(b.fma(value, factor, factor) for value in loop.carried))
        for i in range(12):
            b.store(y, b.add(lanes.index, 16 * i), loop.results[i])
    data = np.full(256, 0.5, np.float32)
    return 20000 * 12 * 16 * 2 / Kernel(service, b.finish()).best([data, data.copy()], 1)


def row_arguments(program: RowProgram, rows: int) -> list[Any]:
    """Return random arguments of a row program."""
    arguments: list[Any] = []
    indices = {spec.indexed_by for spec in program.inputs} | {o.slot_input for o in program.outputs}
    for number, spec in enumerate(program.inputs):
        dtype = dtype_by_name(spec.dtype).numpy
        shape = (rows, *spec.shape) if spec.per_row or spec.indexed_by is not None else spec.shape
        is_index = number in indices or dtype.kind in "iu"
        arguments.append(
            np.resize(np.arange(rows), shape).astype(dtype)
            if is_index
            else RNG.standard_normal(shape).astype(dtype)
        )
        if spec.indexed_by is not None:
            arguments.append(rows)
    for output in program.outputs:
        arguments += _output_arguments(program, output, rows)
    return [*arguments, rows, np.zeros(rows, np.int32)]


def _output_arguments(program: RowProgram, output: Any, rows: int) -> list[Any]:
    inputs = len(program.inputs)
    value = output.value
    spec = program.inputs[value] if value < inputs else program.nodes[value - inputs]
    size = math.prod(spec.shape)
    if output.kind == "kv":
        blocks = -(-rows // output.layout.block_size)
        shape = reference.kv_pool_shape(output.layout, blocks)
        pool = np.zeros(shape, dtype_by_name(output.layout.dtype).numpy)
        return [pool, blocks * output.layout.block_size]
    if output.kind == "i8":
        return [np.zeros((rows, size), np.int8), *np.zeros((2, rows, size // 32), np.float32)]
    dtype = np.uint16 if output.kind == "bf16" else dtype_by_name(output.dtype).numpy
    return [np.zeros((rows, size), dtype)]


def attend_arguments(request: AttendRequest, first: int, tokens: int) -> tuple[list[Any], int]:
    """Return arguments for one sequence's tokens at positions ``first``.., and the work items."""
    blocks = -(-(first + tokens) // request.key.block_size)
    pools = [
        RNG.standard_normal(reference.kv_pool_shape(layout, blocks)).astype(
            dtype_by_name(layout.dtype).numpy
        )
        for layout in (request.key, request.value)
    ]
    items: list[tuple[int, int, int, int]] = []
    for start in range(0, tokens, request.query_tile):
        count = min(request.query_tile, tokens - start)
        low, high = first + start, first + start + count - 1
        low = 0 if request.window is None else max(0, low - request.window + 1)
        for split in range(low // request.split, high // request.split + 1):
            edges = split * request.split, (split + 1) * request.split
            items.append((start, count, max(low, edges[0]), min(high + 1, edges[1])))
    heads, dim = request.num_heads, request.value.head_dim
    parts = (first + tokens - 1) // request.split + 1
    queries = RNG.standard_normal((tokens, heads, request.key.head_dim)).astype(np.float32)
    positions = np.arange(first, first + tokens, dtype=np.int32)
    table = RNG.permutation(blocks).astype(np.int32)[None]
    extra = [np.zeros(heads, np.float32)] * (request.sinks + request.alibi)
    return [
        queries, *pools, positions, np.zeros(tokens, np.int32), table, np.array(items, np.int32),
        len(items), blocks, *extra, np.zeros((tokens, parts, heads, dim + 2), np.float32), parts,
        np.zeros((tokens, heads, dim), np.float32),
    ], len(items) * request.key.num_kv_heads  # fmt: skip


def report_rows(service: CompileService, program: RowProgram, rows: int) -> None:
    """Print a row program's times."""
    (found,) = generate(program, TARGET, CAPS)
    kernel = Kernel(service, found.function)
    arguments = row_arguments(program, rows)[: len(found.function.parameters)]
    one, many = kernel.best(arguments, 1), kernel.best(arguments, rows) / rows
    kinds = "+".join(output.kind for output in program.outputs)
    nbytes = sum(a.nbytes for a in arguments if isinstance(a, np.ndarray)) / rows
    print(
        f"rows -> {kinds:24} {len(program.nodes):3} nodes  one row {one * 1e6:6.2f} us  of {rows} "
        f"{many * 1e6:6.3f} us ({nbytes / many / 1e9:5.1f} GB/s)  compile {kernel.compile_ms:.0f} ms"
    )


def report_attend(service: CompileService, request: AttendRequest, context: int) -> None:
    """Print attention's times: decode behind a context, or a prefill of 512."""
    main = next(k for k in generate(request, TARGET, CAPS) if k.role == "main")
    kernel = Kernel(service, main.function)
    first, tokens = (context - 1, 1) if request.query_tile == 1 else (0, 512)
    arguments, tiles = attend_arguments(request, first, tokens)
    spent = kernel.best(arguments, tiles)
    dims = request.key.head_dim + request.value.head_dim
    keys = sum(range(first + 1, first + tokens + 1))
    if request.window is not None:
        keys = sum(min(n, request.window) for n in range(first + 1, first + tokens + 1))
    operations = 2 * keys * request.num_heads * dims
    print(
        f"attend {request.num_heads}/{request.key.num_kv_heads} x {request.key.head_dim} window "
        f"{request.window}: {tokens} tokens after {first}: {spent * 1e6:8.1f} us  "
        f"{operations / spent / 1e9:5.1f} GOP/s  compile {kernel.compile_ms:.0f} ms"
    )


def report_model(service: CompileService, path: str, rows: int, context: int) -> None:
    """Print the times of a model's kernels."""
    with open_checkpoint(path) as checkpoint:
        graph = load_family(checkpoint).trace(TraceOptions(max_blocks_per_row=context // 16))
    print(f"# {path}, peak {fma_peak(service) / 1e9:.0f} GOP/s of one core")
    reports: dict[type, Callable[[Any], None]] = {
        RowProgram: lambda r: report_rows(service, r, rows),
        AttendRequest: lambda r: report_attend(service, r, context),
    }
    for request in dict.fromkeys(compile_graph(graph, TARGET, PlanOptions()).requests):
        if type(request) in reports:
            reports[type(request)](request)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    with CompileService(Settings(), num_workers=1) as service:
        for path in options.models:
            report_model(service, path, options.rows, options.context)


if __name__ == "__main__":
    main()
