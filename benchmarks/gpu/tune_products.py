"""Tiles of the few-row products side by side: TB/s of weight bytes by columns and steps in flight."""

from __future__ import annotations

import argparse

from harness import Bench
from products import LAYOUT, SHAPES, report

from poot_kernelgen.contraction.matrix import _multiply as matrix  # noqa: PLC2701
from poot_kernelgen.requests import ContractionRequest

CHOICES = {
    "one": [(8, 16, stages) for stages in (4, 6, 8, 10, 16)],
    "few": [(8, columns, stages) for columns in (16, 32, 64) for stages in (4, 6)],
    "some": [(64, 64, 4), (64, 64, 6), (64, 128, 4)],
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
            matrix._TILES[regime] = matrix._Tile(*tile)
            for stages in (matrix._STAGES_OF_ONE, matrix._STAGES_OF_FEW):
                stages["many"] = tile[2]  # what a request asks for that says nothing else
            request = ContractionRequest(weight=LAYOUT, activation="bf16", regime=regime)
            name = f"{regime}_{tile[1]}_{tile[2]}"
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
