"""Causal attention of a prompt over the paged pool on one GPU: error, bits in every cut, and rate.

Run: python benchmarks/gpu/attention.py [--torch]. Keys and values lie in shuffled blocks. The kernel of
many tokens is compared with float64, with itself where its items are cut at every split, and with the
kernel of single tokens. TFLOP/s count two products of every visible (query, key) pair.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from harness import Bench

from poot_kernelgen import generate, joined_tile_for
from poot_kernelgen.requests import AttendRequest, KvLayout

BLOCK = 32
SEED = 11
RESULTS: list[dict[str, object]] = []


def report(name: str, **facts: object) -> None:
    RESULTS.append({"name": name, **facts})
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    print(f"{name:40s} {'  '.join(shown)}", flush=True)


@dataclass(frozen=True)
class Shape:
    """One prompt.

    Attributes:
        heads: Query heads.
        kv_heads: Heads of keys and values.
        dim: Of a head.
        tokens: Of the prompt.
        split: Keys of a split.
    """

    heads: int
    kv_heads: int
    dim: int
    tokens: int
    split: int = 512

    def request(self, query_tile: int) -> AttendRequest:
        def layout(role: Any) -> KvLayout:
            return KvLayout(
                role=role, num_kv_heads=self.kv_heads, head_dim=self.dim, block_size=BLOCK,
                dtype="bf16",
            )  # fmt: skip

        return AttendRequest(
            num_heads=self.heads, key=layout("key"), value=layout("value"),
            scale=self.dim**-0.5, query_tile=query_tile, split=self.split, result_dtype="bf16",
        )  # fmt: skip

    def flops(self) -> float:
        return 4.0 * self.heads * self.dim * self.tokens * (self.tokens + 1) / 2


def items(tokens: int, tile: int, split: int | None) -> np.ndarray:
    """Return work items of a prompt, cut at every split or whole."""
    found = []
    for start in range(0, tokens, tile):
        count = min(tile, tokens - start)
        end = start + count
        step = split or end
        found += [(start, count, low, min(end, low + step)) for low in range(0, end, step)]
    return np.array(found, np.int32)


class Case:
    """A prompt's arrays on the device."""

    def __init__(self, bench: Bench, shape: Shape) -> None:
        self.bench, self.shape = bench, shape
        rng = np.random.default_rng(SEED)
        kv, dim, tokens = shape.kv_heads, shape.dim, shape.tokens
        self.blocks = -(-tokens // BLOCK) + 1
        sizes = self.blocks * BLOCK, kv, dim

        def rounded(x: np.ndarray) -> np.ndarray:
            return x.astype(ml_dtypes.bfloat16)

        self.keys, self.values = (rounded(rng.standard_normal(sizes, np.float32)) for _ in range(2))
        self.queries = rng.standard_normal((tokens, shape.heads, dim), np.float32)
        order = rng.permutation(self.blocks)
        key_pool = np.zeros((self.blocks, kv, dim, BLOCK), ml_dtypes.bfloat16)
        value_pool = np.zeros((self.blocks, kv, BLOCK, dim), ml_dtypes.bfloat16)
        key_pool[order] = self.keys.reshape(-1, BLOCK, kv, dim).transpose(0, 2, 3, 1)
        value_pool[order] = self.values.reshape(-1, BLOCK, kv, dim).transpose(0, 2, 1, 3)
        self.parts = -(-tokens // shape.split)
        self.arrays = [
            bench.array(x) for x in (
                self.queries, key_pool.view(np.uint16), value_pool.view(np.uint16),
                np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.int32),
                order.astype(np.int32),
            )
        ]  # fmt: skip
        row_bytes = 4 * self.parts * shape.heads * (dim + 2)
        self.partials = bench.device.allocate(tokens * row_bytes, "partials")
        self.result = bench.device.allocate(2 * tokens * shape.heads * dim, "result")

    def launches(self, query_tile: int, *, is_cut: bool) -> list[Any]:
        device, shape = self.bench.device, self.shape
        found = generate(shape.request(query_tile), device.target, device.caps)
        names = [k.function.name for k in found]
        kernels = self.bench.kernels([k.function for k in found])
        work = items(shape.tokens, query_tile, shape.split if is_cut else None)
        main, merge = (kernels[name] for name in names)
        given = [*self.arrays, self.bench.array(work), len(work), self.blocks, self.partials]
        launches = [self.bench.launch(main, *given, self.parts, self.result)]
        if is_cut:
            launches.append(
                self.bench.launch(
                    merge, self.partials, self.parts, self.arrays[3], self.result, shape.tokens
                )
            )
        return launches

    def run(self, launches: list[Any]) -> np.ndarray:
        device = self.bench.device
        for buffer in (self.result, self.partials):
            device.upload(buffer, np.full(min(buffer.nbytes, 1 << 28), 0xFF, np.uint8))
        device.run(device.prepare(launches), {})
        raw = device.download(self.result).view(np.uint16)
        return raw.reshape(self.shape.tokens, self.shape.heads, self.shape.dim)

    def error(self, raw: np.ndarray, samples: int = 60) -> float:
        """Return the largest error of some rows over the largest magnitude, against float64."""
        rng, shape = np.random.default_rng(1), self.shape
        worst, size = 0.0, 0.0
        for number in range(samples):
            token = shape.tokens - 1 - number if number < 8 else int(rng.integers(shape.tokens))
            head = int(rng.integers(shape.heads))
            own = head // (shape.heads // shape.kv_heads)
            seen = slice(0, token + 1)
            keys, values = (x[seen, own].astype(np.float64) for x in (self.keys, self.values))
            score = keys @ self.queries[token, head].astype(np.float64) * shape.dim**-0.5
            weight = np.exp(score - score.max())
            wanted = weight @ values / weight.sum()
            found = raw[token, head].view(ml_dtypes.bfloat16).astype(np.float64)
            worst = max(worst, float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max()))
            size = max(size, float(np.abs(wanted).max()))
        return worst / size


def torch_rate(shape: Shape) -> float:
    """Return the TFLOP/s of torch's own attention, keys and values of every query head given."""
    import torch

    sizes = 1, shape.heads, shape.tokens, shape.dim
    q, k, v = (torch.randn(sizes, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    times = []
    for number in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        end.record()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end) / 1e3)
    return shape.flops() / float(np.median(times)) / 1e12


def measure(bench: Bench, shape: Shape, *, torch: bool) -> bool:
    """Check and time one prompt; return whether it was right."""
    name = f"{shape.heads}/{shape.kv_heads} heads of {shape.dim}, {shape.tokens} tokens"
    device = bench.device
    tile = joined_tile_for(shape.request(1), device.target, device.caps)
    case = Case(bench, shape)
    whole = case.launches(tile or 16, is_cut=not tile)
    found = case.run(whole)
    error = case.error(found)
    cut = case.run(case.launches(tile or 16, is_cut=True))
    single = case.run(case.launches(1, is_cut=True))
    same = {"cut": float((found == cut).mean()), "single": float((found == single).mean())}
    seconds = bench.seconds(whole)
    facts: dict[str, object] = {"tflops": shape.flops() / seconds / 1e12, "ms": seconds * 1e3}
    if torch:
        facts["torch_tflops"] = torch_rate(shape)
    report(name, error=error, **same, **facts)
    return error < 2**-6 and min(same.values()) == 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", nargs="*", type=int, default=[2048, 8192])
    parser.add_argument("--torch", action="store_true", help="time torch's attention as well")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    bench = Bench()
    shapes = [Shape(32, 8, 128, tokens) for tokens in options.tokens]
    shapes += [Shape(32, 32, 128, max(options.tokens)), Shape(14, 2, 64, 1000)]
    right = [measure(bench, shape, torch=options.torch) for shape in shapes]
    if options.output:
        options.output.write_text(json.dumps(RESULTS, indent=1) + "\n")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
