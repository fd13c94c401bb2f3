"""Tiles of the few-row products side by side: TB/s of weight bytes by columns and steps in flight."""

from __future__ import annotations

import argparse

from harness import Bench
from products import LAYOUT, SHAPES, report

from poot_kernel.targets.nvptx import machine, split
from poot_kernelgen.contraction.matrix import _multiply as matrix
from poot_kernelgen.requests import ContractionRequest

CHOICES = {
    "one": [
        (8, 16, s, l, p) for s in (5, 8) for l in ("", ".L2::128B", ".L2::256B") for p in (0, 1)
    ]
    + [(8, 32, 8, "", 0)],
    "few": [
        (8, c, s, l, p)
        for c, s in ((32, 5), (32, 8), (64, 4), (64, 6))
        for l in ("", ".L2::128B")
        for p in (0,)
    ],
    "some": [
        (64, 64, 4, "", 0),
        (64, 64, 8, "", 0),
        (64, 128, 4, "", 0),
        (64, 128, 6, "", 0),
        (64, 32, 8, "", 0),
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("regimes", nargs="*", default=list(CHOICES))
    options = parser.parse_args()
    bench = Bench()
    device = bench.device
    for regime in options.regimes:
        rows = {"one": 1, "few": 8, "some": 64}[regime]
        kernels = {}
        for tile in CHOICES[regime]:
            matrix._TILES[regime] = matrix._Tile(*tile[:3])
            machine.LINES, split.PREFETCH = tile[3:]
            request = ContractionRequest(weight=LAYOUT, activation="bf16", regime=regime)
            name = f"c{tile[1]}_s{tile[2]}_l{tile[3][5:-1]}_p{tile[4]}"
            functions = [matrix.build_matrix(request, name, device.caps)]
            kernels |= bench.kernels(functions)
        for n, k in SHAPES:
            size = 2 * n * k
            copies = max(2, min(24, -(-(600 << 20) // size)))
            weights = [bench.random(size) for _ in range(copies)]
            x = bench.random(2 * rows * k)
            out = device.allocate(4 * rows * n, "out")
            facts = {}
            for name, kernel in kernels.items():
                steps = [bench.launch(kernel, w, x, out, rows, n, k, n) for w in weights]
                facts[name] = round(size / (bench.seconds(steps, 7) / copies) / 1e12, 2)
            best = max(facts, key=lambda name: facts[name])
            report(f"{regime} {n}x{k}", best=best, **facts)


if __name__ == "__main__":
    main()
