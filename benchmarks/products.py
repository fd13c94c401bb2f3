"""The matrix products of SmolLM2-135M alone, through the CPU device, beside a pure read.

    python benchmarks/products.py [--format Q4_1] [--head Q8_0] [--threads 2] [--repeat 7]

Prints tokens per second at 1, 8 and 512 rows (512 without the head, as a prompt needs it for one row)
and, for one row, the share of the read bandwidth of the same run: the machine drifts, so every round
measures all of them in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from poot_core import Settings, i64
from poot_cpu_device import open_device
from poot_executor import BufferArgument, GridDim, Launch, ScalarArgument
from poot_kernel import compile_kernels
from poot_kernel.compile import CompileService
from poot_kernelgen import (
    ContractionRequest,
    Epilogue,
    PackRequest,
    RowNode,
    WeightLayout,
    generate,
    packed_bytes,
)
from poot_quant import format_by_name, random_blocks

LAYERS = 30
# (rows of the weight, k, gated) of a layer: q, k, v together, output, gate with up, down
SHAPES = ((960, 576, False), (576, 576, False), (3072, 576, True), (576, 1536, False))
HEAD = (49152, 576, False)

_SILU = tuple(
    RowNode(op=op, operands=operands, shape=(), dtype="f32", attributes=attributes)
    for op, operands, attributes in (
        ("neg", (0,), ()), ("exp", (2,), ()), ("literal", (), (("value", 1.0),)),
        ("add", (3, 4), ()), ("div", (0, 5), ()), ("mul", (6, 1), ()),
    )
)  # fmt: skip


def request(source: str, activation: str, regime: str, gated: bool) -> ContractionRequest:
    return ContractionRequest(
        weight=WeightLayout(source=source), activation=activation, regime=regime,
        epilogue=Epilogue(nodes=_SILU) if gated else Epilogue(), gated=gated,
    )  # fmt: skip


class Bench:
    def __init__(self, source: str, head: str, activation: str, threads: int | None) -> None:
        self.settings = Settings()
        self.device = open_device(self.settings, threads)
        self.service = CompileService(self.settings)
        self.activation = activation
        self.kernels: dict[object, tuple] = {}
        rng = np.random.default_rng(0)
        shapes = [(source, *shape) for _ in range(LAYERS) for shape in SHAPES]
        self.weights = []
        raws: dict[object, np.ndarray] = {}
        packing = 0.0
        for entry in [*shapes, (head, *HEAD)]:
            name, n, k, _gated = entry
            if entry not in raws:
                raws[entry] = random_blocks(format_by_name(name), (n, k), rng)
            began = time.perf_counter()
            self.weights.append((entry, self.pack(name, raws[entry], n, k)))
            packing += time.perf_counter() - began
        self.nbytes = sum(buffer.nbytes for _entry, buffer in self.weights)
        print(f"{self.nbytes / 1e6:.1f} MB packed in {packing:.2f} s")

    def kernel(self, what: object) -> tuple:
        if what not in self.kernels:
            (made,) = generate(what, self.device.target, self.device.caps)
            (compiled,) = compile_kernels([made.function], self.device.target, self.service)
            (handles,) = self.device.load([compiled])
            self.kernels[what] = (made, handles[made.name])
        return self.kernels[what]

    def launch(self, what: object, arguments: list) -> Launch:
        made, handle = self.kernel(what)
        grid = tuple(
            GridDim(coefficient=int(arguments[value].value), divisor=divisor)
            for _what, value, divisor in made.grid
        )
        return Launch(
            kernel=handle, arguments=tuple(arguments), grid=grid, grain=made.grain,
            scratch_bytes=made.scratch_bytes,
        )  # fmt: skip

    def pack(self, source: str, raw: np.ndarray, n: int, k: int):
        layout = WeightLayout(source=source)
        target = self.device.allocate(packed_bytes(layout, n, k), source)
        buffer = self.device.import_host(raw, source)
        numbers = [ScalarArgument(v, i64) for v in (n, k, 0, 1)]
        arguments = [BufferArgument(buffer), BufferArgument(target), *numbers]
        launch = self.launch(PackRequest(layout=layout), arguments)
        self.device.run(self.device.prepare([launch]), {})
        self.device.synchronize()
        return target

    def sequence(self, rows: int, with_head: bool):
        regime = "one" if rows == 1 else "few" if rows <= 8 else "some" if rows <= 64 else "many"
        device = self.device
        rng = np.random.default_rng(1)
        x: dict[int, list] = {}
        for k in (576, 1536):
            codes = rng.integers(-127, 128, (rows, k), dtype=np.int8)
            scales = rng.uniform(0.01, 0.02, (rows, k // 32)).astype(np.float32)
            sums = (codes.reshape(rows, -1, 32).sum(-1) * scales).astype(np.float32)
            if self.activation == "u8r":
                codes = codes.view(np.uint8) ^ np.uint8(128)
            parts = [codes, scales, sums]
            if self.activation in {
                "i8r",
                "u8r",
            }:  # a fifth of the blocks has outliers, mostly the same ones
                usual = rng.random((1, k // 32)) < 0.22
                lost = usual & (rng.random((rows, k // 32)) < 0.9)
                parts += [codes[::-1].copy(), (lost * np.float32(1e-4)).astype(np.float32)]
            if self.activation == "f32":
                parts = [rng.standard_normal((rows, k)).astype(np.float32)]
            buffers = [device.allocate(max(p.nbytes, 64), "x") for p in parts]
            for buffer, part in zip(buffers, parts, strict=True):
                device.upload(buffer, part)
            x[k] = [BufferArgument(buffer) for buffer in buffers]
        y = device.allocate(4 * rows * (HEAD[0] if with_head else 3072), "y")
        launches = []
        for (source, n, k, gated), buffer in self.weights[: None if with_head else -1]:
            width = n // 2 if gated else n
            numbers = [ScalarArgument(v, i64) for v in (rows, width, k, width)]
            arguments = [BufferArgument(buffer), *x[k], BufferArgument(y), *numbers]
            launches.append(self.launch(request(source, self.activation, regime, gated), arguments))
        return device.prepare(launches)

    def seconds(self, prepared, clock) -> float:
        began = clock()
        self.device.run(prepared, {})
        self.device.synchronize()
        return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", default="Q4_1")
    parser.add_argument("--head", default="Q8_0")
    parser.add_argument("--activation", default="i8", choices=("i8", "i8r", "u8r", "f32"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--rows", default="1,4,8,16,512")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the calling thread, for one thread on a busy machine",
    )
    given = parser.parse_args()
    clock = time.thread_time if given.cpu_time else time.perf_counter
    bench = Bench(given.format, given.head, given.activation, given.threads)
    cases = [(int(m), bench.sequence(int(m), int(m) <= 64)) for m in given.rows.split(",")]
    times: dict[int, list[float]] = {rows: [] for rows, _ in cases}
    reads: list[float] = []
    for _ in range(given.repeat):
        reads.append(bench.device.read_bandwidth_gb_s(bench.nbytes, repeat=1))
        for rows, prepared in cases:
            times[rows] += [bench.seconds(prepared, clock) for _ in range(3 if rows <= 64 else 1)]
    read, best = statistics.median(reads), max(reads)
    print(f"read {read:.1f} GB/s, best {best:.1f}")
    for rows, _ in cases:
        middle, least = statistics.median(times[rows]), min(times[rows])
        rate = bench.nbytes / middle / 1e9
        print(
            f"M={rows}: {rows / middle:.0f} tok/s (best {rows / least:.0f})"
            + (f", {rate / read:.2f} of read (best {bench.nbytes / least / 1e9 / best:.2f})"
               if rows <= 64 else "")
        )  # fmt: skip
    bench.device.close()
    bench.service.close()


if __name__ == "__main__":
    main()
