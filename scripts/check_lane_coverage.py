"""Fail when a test runs in no lane, a listed row names no test, or a device test may run beside another.

Also fails for a checkpoint test that no list names, and for a lane that is pending although a test is
in it, or not pending and empty. ``self-test`` shows each of these failing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from collection import ROOT, Collected, collect_tests

from poot_test_util import Lane, Lanes, Row, load_lanes, read_cases

CASES_BY_FILE = Mapping[str, list[Row]]


def run_nowhere(tests: Iterable[Collected], lanes: Lanes, cases: CASES_BY_FILE) -> list[str]:
    """Return the tests that no lane selects."""
    problems: list[str] = []
    for test in tests:
        if not test.lanes:
            why = "names no device" if "device" in test.marks else "its package is excluded"
            problems.append(f"runs in no lane ({why}): {test.node_id}")
        for name in test.lanes:
            lane = lanes.lanes.get(name)
            if lane is None:
                problems.append(f"runs in lane {name}, which does not exist: {test.node_id}")
            elif lane.only_listed and lane.cases:
                listed = {row.node_id for row in cases.get(lane.cases, [])}
                if test.node_id not in listed:
                    problems.append(f"runs in no lane: {lane.cases} must name {test.node_id}")
    return problems


def rows_without_a_test(tests: Iterable[Collected], cases: CASES_BY_FILE) -> list[str]:
    """Return the listed rows that name no test, or are listed twice."""
    names: set[str] = set()
    for test in tests:
        names |= {test.node_id, test.function}
    problems: list[str] = []
    for file, rows in cases.items():
        seen: set[str] = set()
        for row in rows:
            if row.node_id not in names:
                problems.append(f"{file} names no test: {row.node_id}")
            if row.node_id in seen:
                problems.append(f"{file} names it twice: {row.node_id}")
            seen.add(row.node_id)
    return problems


def outside_groups(tests: Iterable[Collected], lanes: Lanes) -> list[str]:
    """Return the tests of a device lane that no one-at-a-time group holds."""
    return [
        f"outside of the one-at-a-time groups of .config/lanes.toml: {test.node_id}"
        for test in tests
        if any(name in lanes.lanes and lanes.lanes[name].device for name in test.lanes)
        and not set(test.groups) & set(lanes.groups)
    ]


def wrongly_pending(tests: Iterable[Collected], lanes: Lanes) -> list[str]:
    """Return the lanes that are pending and have tests, or have none and are not pending."""
    filled = {name for test in tests for name in test.lanes}
    problems: list[str] = []
    for name, lane in lanes.lanes.items():
        if name in lanes.pending and name in filled:
            problems.append(
                f"lane {name} has tests: delete it from `pending` in .config/lanes.toml"
            )
        elif name not in lanes.pending and name not in filled and lane.tag is None:
            problems.append(f"lane {name} selects no test")
    return problems


def all_problems(tests: list[Collected], lanes: Lanes, cases: CASES_BY_FILE) -> list[str]:
    """Return everything that is wrong."""
    return [
        *run_nowhere(tests, lanes, cases),
        *rows_without_a_test(tests, cases),
        *outside_groups(tests, lanes),
        *wrongly_pending(tests, lanes),
    ]


def read_all_cases() -> dict[str, list[Row]]:
    """Return the rows of every list, by path."""
    folder = ROOT / "scripts"
    files = [folder / "required-checkpoint-cases.txt"]
    files += sorted((folder / "required-device-cases").glob("*.txt"))
    files += sorted(folder.glob("*.unlisted.txt"))
    found: dict[str, list[Row]] = {}
    for file in files:
        rows = [*read_cases(file), *read_cases(file, "large")]
        found[file.relative_to(ROOT).as_posix()] = rows
    return found


def self_test() -> list[str]:
    """Return which known-bad inputs pass."""
    lanes = Lanes(
        lanes={
            "model-free": Lane(name="model-free"),
            "device-wgpu": Lane(name="device-wgpu", device="wgpu", cases="wgpu.txt"),
            "checkpoint": Lane(name="checkpoint", cases="rows.txt", only_listed=True),
        },
        packages={"poot-a": "mixed", "poot-wgpu-device": "mixed"},
        groups={"device": ("device",)},
    )
    plain = Collected(node_id="t.py::plain", package="poot-a", lanes=("model-free",))
    marks = frozenset({"device"})
    held = Collected(
        node_id="t.py::gpu",
        package="poot-wgpu-device",
        marks=marks,
        devices=("wgpu",),
        groups=("device",),
        lanes=("device-wgpu",),
    )
    real = Collected(node_id="t.py::real[x]", package="poot-a", lanes=("checkpoint",))
    tests, cases = [plain, held, real], {"rows.txt": [Row(node_id="t.py::real[x]")]}
    more = {"wgpu.txt": [Row(node_id="t.py::gone")], **cases}
    twice = {"rows.txt": cases["rows.txt"] * 2}
    attempts = {
        "a test in no lane": ([*tests, replace(plain, lanes=())], lanes, cases),
        "a device test that names no device": (
            [*tests, replace(held, devices=(), lanes=())],
            lanes,
            cases,
        ),
        "a checkpoint test that no list names": (
            [*tests, replace(real, node_id="t.py::real[y]")],
            lanes,
            cases,
        ),
        "a row that names no test": (tests, lanes, more),
        "a row that stands twice": (tests, lanes, twice),
        "a device test outside of the group": (
            [*tests, replace(held, groups=("other",))],
            lanes,
            cases,
        ),
        "a lane that does not exist": (
            [*tests, replace(held, lanes=("device-cuda",))],
            lanes,
            cases,
        ),
        "a pending lane with tests": (tests, replace(lanes, pending=("device-wgpu",)), cases),
        "a lane without tests": ([plain, real], lanes, cases),
    }
    missed = [name for name, given in attempts.items() if not all_problems(*given)]
    if found := all_problems(tests, lanes, cases):
        missed.append(f"good lanes are refused: {found}")
    return missed


def main() -> int:
    """Check, or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "self-test"])
    if parser.parse_args().command == "self-test":
        problems = self_test()
        print("\n".join(problems) or "lane coverage catches every known-bad input")
        return min(len(problems), 1)
    tests = collect_tests()
    problems = all_problems(tests, load_lanes(ROOT), read_all_cases())
    print("\n".join(problems) or f"{len(tests)} tests run in a lane")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
