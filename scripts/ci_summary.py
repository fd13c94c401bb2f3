"""Print what a run of .ci/run took beside its budget, its slowest tests, and what passed and failed."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "lanes"
SLOWEST = 20
MODEL_FREE_MINUTES = 10
TOTAL_MINUTES = 60


def read_cases(folder: Path) -> Iterator[tuple[str, str, float, str]]:
    """Yield lane, test, seconds and outcome of every test that ran."""
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            names = [p.get("value") for p in case.iter("property") if p.get("name") == "node_id"]
            name = names[0] if names else f"{case.get('classname')}::{case.get('name')}"
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "passed"
            outcome = "skipped" if "skipped" in kinds else outcome
            yield path.stem, str(name), float(case.get("time", "0")), outcome


def main() -> None:
    """Print the tables; ``steps`` holds a line a step: name, seconds, budget in minutes, exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=Path)
    rows = [line.split("\t") for line in parser.parse_args().steps.read_text().splitlines()]
    print(f"\n{'step':34} {'took':>9} {'budget':>9}")
    for name, seconds, minutes, code in rows:
        budget = f"{minutes} min" if minutes != "-" else ""
        late = minutes != "-" and int(seconds) > 60 * int(minutes)
        note = " OVER ITS BUDGET" if late else ""
        note += f" ended with {code}" if code != "0" else ""
        print(f"{name:34} {int(seconds) / 60:5.1f} min {budget:>9}{note}")
    for path in sorted(RESULTS.glob("*.xml")):
        seconds = float(next(ElementTree.parse(path).iter("testsuite")).get("time", "0"))
        budget = f"{MODEL_FREE_MINUTES} min" if path.stem == "model-free" else ""
        late = budget and seconds > 60 * MODEL_FREE_MINUTES
        note = " OVER ITS BUDGET" if late else ""
        print(f"  {'of that, ' + path.stem:32} {seconds / 60:5.1f} min {budget:>9}{note}")
    total = sum(int(row[1]) for row in rows)
    note = " OVER ITS BUDGET" if total > 60 * TOTAL_MINUTES else ""
    print(f"{'all':34} {total / 60:5.1f} min {TOTAL_MINUTES:>5} min{note}")
    cases = sorted(read_cases(RESULTS), key=lambda case: -case[2])
    print("\nthe slowest tests")
    for lane, name, seconds, _ in cases[:SLOWEST]:
        print(f"{seconds:7.1f} s  {lane:20} {name}")
    outcomes = [case[3] for case in cases]
    skipped = sorted({f"{lane}: {name}" for lane, name, _, how in cases if how == "skipped"})
    print("\n" + "\n".join(f"skipped: {line}" for line in skipped[:40]))
    counts = [f"{outcomes.count(how)} {how}" for how in ("passed", "failed", "skipped")]
    print(", ".join(counts))


if __name__ == "__main__":
    main()
