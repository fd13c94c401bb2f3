"""What each kind of launch adds to a replayed step: the step's time less that without the kind.

Run: python benchmarks/gpu/launch_costs.py [--models 1b 8b] [--rows 1 64]. Launches of one sequence
overlap, so that times of single launches say little; what is left out here is what a step would save.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from decode import RESULTS, fill, open_random, report, step_of

from poot_executor._runner import selected_launches  # noqa: PLC2701


def costs(engine: Any, name: str, rows: int, context: int) -> None:
    runner, program, device = engine.runner, engine.program, engine.runner.device
    fill(engine, rows, context - 1)
    key = engine.prepare_step(step_of(engine, [(r, context - 1, 1) for r in range(rows)]))
    runner._host.flush()
    kinds, launches = [], []
    for launch, variant in selected_launches(program, key):
        what = launch.label.rsplit(":", 1)[-1].rsplit(".weight", 1)[0].rsplit(".", 1)[-1]
        kinds.append(f"{what}#{variant}")
        launches.append(runner._launch(launch, variant))
    for launch in program.greedy:
        kinds.append("greedy")
        launches.append(runner._launch(launch, launch.variants[0]))

    def seconds(left_out: str | None) -> float:
        chosen = [x for kind, x in zip(kinds, launches, strict=True) if kind != left_out]
        sequence = device.prepare(chosen)
        device.capture(sequence, engine.sizes)
        return device.time_replay(sequence, engine.sizes, repeat=11)

    whole = seconds(None)
    found = {}
    for kind in dict.fromkeys(kinds):
        number = kinds.count(kind)
        found[f"{number} {kind}"] = round((whole - seconds(kind)) * 1e6 / number, 2)
    report(f"{name} costs R={rows} context={context}", whole_us=whole * 1e6, **found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["1b", "8b", "qwen0.5b"])
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 64])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--packed", default=None)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    failed = 0
    for name in options.models:
        try:
            engine = open_random(
                name, options.backend, context=options.context + 64, rows=max(options.rows),
                tokens=max(options.context, 64), packed=options.packed,
            )  # fmt: skip
            for rows in options.rows:
                costs(engine, name, rows, options.context)
            engine.close()
        except Exception:
            failed += 1
            traceback.print_exc()
    if options.output:
        options.output.write_text(json.dumps(RESULTS, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
