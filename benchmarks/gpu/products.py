"""Products of bf16 weights on one GPU: bits over all numbers of rows, then rates beside cuBLAS.

Run: python benchmarks/gpu/products.py [--torch] [--parts check decode prefill]. Rates of weight bytes
are of replayed sequences over weights that no cache holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from harness import Bench

from poot_kernelgen.contraction.matrix import build_matrix
from poot_kernelgen.requests import ContractionRequest, Epilogue, RowNode, WeightLayout

LAYOUT = WeightLayout(source="bf16", order="rows", interleave=16)
SHAPES = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048),
          (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096),
          (1152, 896), (9728, 896), (896, 4864))  # fmt: skip
PREFILL = ((2048, 6144, 4096), (2048, 4096, 4096), (2048, 28672, 4096), (2048, 4096, 14336),
           (4096, 4096, 4096), (8192, 8192, 8192))  # fmt: skip
WIDE = 16384  # rows of a weight from which on the planner takes a single chain
REGIMES = ((1, "one"), (8, "few"), (64, "some"))
RESULTS: list[dict[str, object]] = []


def report(name: str, **facts: object) -> None:
    RESULTS.append({"name": name, **facts})
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    print(f"{name:36s} {'  '.join(shown)}", flush=True)


def requests() -> dict[str, ContractionRequest]:
    found = {}
    add = Epilogue(
        inputs=("full",), nodes=(RowNode(op="add", operands=(0, 1), shape=(), dtype="f32"),)
    )
    product = Epilogue(nodes=(RowNode(op="mul", operands=(0, 1), shape=(), dtype="f32"),))
    for regime in ("one", "few", "some", "many"):
        facts = {"weight": LAYOUT, "activation": "bf16", "regime": regime}
        found[regime] = ContractionRequest(**facts)
        found[f"{regime}_residual"] = ContractionRequest(**facts, epilogue=add)
        found[f"{regime}_gated"] = ContractionRequest(**facts, epilogue=product, gated=True)
    found["many_wide"] = ContractionRequest(
        weight=LAYOUT, activation="bf16", regime="many", is_wide=True
    )
    return found


def floats(raw: np.ndarray) -> np.ndarray:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def check(bench: Bench, kernels: dict[str, object]) -> None:
    """Compare all regimes with each other, bit for bit, and with float64."""
    device = bench.device
    for n, k in ((320, 2048), (300, 4864), (48, 896), (160, 14336), (512, 1024)):
        rows = 150
        x, w = bench.random(2 * rows * k), bench.random(2 * 2 * (n + 16) * k)
        residual = bench.array(
            np.random.default_rng(1).standard_normal((rows, n)).astype(np.float32)
        )
        values = floats(device.download(x)).reshape(rows, k).astype(np.float64)
        weights = floats(device.download(w)).reshape(-1, k).astype(np.float64)
        groups = -(-n // 16)
        plain = values @ weights[:n].T
        pairs = weights[: 32 * groups].reshape(groups, 2, 16, k)
        halves = [values @ pairs[:, i].reshape(-1, k)[:n].T for i in range(2)]
        wanted = {
            "": plain,
            "_residual": plain
            + np.frombuffer(device.download(residual), np.float32).reshape(rows, n),
            "_gated": halves[0] * halves[1],
        }
        for kind, right in wanted.items():
            found = {}
            for most, regime in ((1, "one"), (8, "few"), (64, "some"), (150, "many")):
                out = bench.array(np.full((rows, n), np.nan, np.float32))
                launches = []
                for start in range(0, rows, most):
                    count = min(most, rows - start)
                    extra = [(residual, 4 * start * n)] if kind == "_residual" else []
                    launches.append(bench.launch(
                        kernels[regime + kind], w, (x, 2 * start * k), *extra, (out, 4 * start * n),
                        count, n, k, n,
                    ))  # fmt: skip
                device.run(device.prepare(launches), {})
                found[regime] = device.download(out).view(np.float32).reshape(rows, n)
            error = np.abs(found["many"] - right).max() / np.abs(right).max()
            same = {r: float((v.view(np.uint32) == found["many"].view(np.uint32)).mean())
                    for r, v in found.items() if r != "many"}  # fmt: skip
            report(f"bits {n}x{k}{kind}", error=float(error), **same)


def decode(bench: Bench, kernels: dict[str, object], torch: object, shapes=SHAPES) -> None:
    for n, k in shapes:
        size = 2 * n * k
        copies = max(2, min(24, -(-(600 << 20) // size)))
        weights = [bench.random(size) for _ in range(copies)]
        facts: dict[str, object] = {}
        for rows, regime in REGIMES:
            x = bench.random(2 * rows * k)
            out = bench.device.allocate(4 * rows * n, "out")
            launches = [bench.launch(kernels[regime], w, x, out, rows, n, k, n) for w in weights]
            seconds = bench.seconds(launches) / copies
            facts[f"M{rows}"] = size / seconds / 1e12
            if n >= 9728 and rows == 1:
                gated = [bench.launch(kernels["one_gated"], w, x, out, rows, n // 2, k, n // 2)
                         for w in weights]  # fmt: skip
                facts["M1 gated"] = size / (bench.seconds(gated) / copies) / 1e12
            if torch is not None:
                facts[f"cuBLAS{rows}"] = size / torch_seconds(torch, rows, n, k, copies) / 1e12
        report(f"decode {n}x{k} TB/s", **facts)
        del weights


def torch_seconds(torch, m: int, n: int, k: int, copies: int) -> float:
    weights = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(copies)]
    x = torch.randn(m, k, device="cuda").bfloat16()
    for w in weights[:2]:
        torch.nn.functional.linear(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [torch.nn.functional.linear(x, w) for w in weights]
    times = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    del outs
    return sorted(times)[6] / 1e3 / copies


def prefill(bench: Bench, kernels: dict[str, object], torch: object) -> None:
    for m, n, k in PREFILL:
        weights = [bench.random(2 * n * k) for _ in range(2)]
        x = bench.random(2 * m * k)
        out = bench.device.allocate(4 * m * n, "out")
        kernel = kernels["many_wide" if n >= WIDE else "many"]
        launches = [bench.launch(kernel, w, x, out, m, n, k, n) for w in weights] * 3
        seconds = bench.seconds(launches, 9) / 6
        facts: dict[str, object] = {"tflops": 2 * m * n * k / seconds / 1e12}
        if torch is not None:
            facts["cuBLAS"] = 2 * m * n * k / torch_seconds(torch, m, n, k, 3) / 1e12
        report(f"prefill {m}x{n}x{k}", **facts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", action="store_true", help="time cuBLAS through torch as well")
    parser.add_argument("--parts", nargs="*", default=["check", "decode", "prefill"])
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    torch = None
    if options.torch:
        import torch
    began = time.perf_counter()
    bench = Bench()
    built = {n: build_matrix(r, f"m_{n}", bench.device.caps) for n, r in requests().items()}
    loaded = bench.kernels(list(built.values()))
    kernels = {name: loaded[f"m_{name}"] for name in built}
    report("kernels", number=len(kernels), seconds=time.perf_counter() - began)
    report("read", gb_s=bench.device.read_bandwidth_gb_s(4 << 30))
    failed = 0
    parts = {
        "check": lambda: check(bench, kernels),
        "decode": lambda: decode(bench, kernels, torch),
        "prefill": lambda: prefill(bench, kernels, torch),
    }
    for name in options.parts:
        try:
            parts[name]()
        except Exception:
            failed += 1
            traceback.print_exc()
    if options.output:
        options.output.write_text(json.dumps(RESULTS, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
