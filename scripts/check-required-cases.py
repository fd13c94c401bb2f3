"""Hold a lane's JUnit results against the rows that must pass.

``begin LANE RESULTS`` stamps the start of a run and deletes old results; ``check LANE RESULTS`` wants
results that are newer than the stamp and were written by that lane, every row of the lane's list run
and passed, every other passing row named with a reason in ``LANE.unlisted.txt``, and no skip.
``add LANE RESULTS`` appends the passing rows that no list names, for a person to read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from poot_test_util import Row, load_lanes, read_cases

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a JUnit file says.

    Attributes:
        suite: Name of the suite, which is the lane's.
        started_s: When it began, seconds since the epoch.
        outcomes: ``passed``, ``failed`` or ``skipped`` by node id.
    """

    suite: str
    started_s: float
    outcomes: dict[str, str]


def stamp_of(results: Path) -> Path:
    """Return where the stamp of a run lies."""
    return results.with_suffix(".stamp")


def begin(lane: str, results: Path, *, software: bool) -> None:
    """Stamp the start of a run and delete old results."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    record = {"lane": lane, "started_s": time.time(), "software": software}
    stamp_of(results).write_text(json.dumps(record))


def read_results(path: Path) -> Results:
    """Read a JUnit file that pytest wrote under the plugin of poot-test-util."""
    top = ElementTree.parse(path).getroot()
    suite = top if top.tag == "testsuite" else top.find("testsuite")
    if suite is None:
        raise ValueError(f"{path} holds no testsuite")
    outcomes: dict[str, str] = {}
    for case in suite.iter("testcase"):
        names = [p.get("value") for p in case.iter("property") if p.get("name") == "node_id"]
        name = names[0] or "" if names else f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        bad = "failed" if kinds & {"failure", "error"} else "skipped"
        outcomes[name] = bad if kinds & {"failure", "error", "skipped"} else "passed"
    started = datetime.fromisoformat(suite.get("timestamp", "1970-01-01")).timestamp()
    return Results(suite=suite.get("name", ""), started_s=started, outcomes=outcomes)


def required_rows(cases: Path, tag: str | None, *, software: bool) -> list[Row]:
    """Return the rows that must pass; a software adapter is spared those tagged ``hardware``."""
    return [r for r in read_cases(cases, tag) if not (software and "hardware" in r.tags)]


def unlisted_of(cases: Path) -> Path:
    """Return the list of passing rows that need not be required, with reasons."""
    return cases.with_suffix(".unlisted.txt")


def compare(lane: str, path: Path, cases: Path, tag: str | None = None) -> list[str]:
    """Return what is wrong with the results of a lane."""
    stamp = stamp_of(path)
    if not stamp.is_file():
        return [f"{stamp} is missing: the run was not begun"]
    if not path.is_file():
        return [f"{path} is missing: the lane wrote no results"]
    record = json.loads(stamp.read_text())
    results = read_results(path)
    problems: list[str] = []
    if path.stat().st_mtime < record["started_s"] or results.started_s < record["started_s"] - 1:
        problems.append(f"{path} is older than {stamp}")
    if lane not in {results.suite} or record["lane"] != lane:
        problems.append(
            f"{path} was written by {results.suite!r} and begun by {record['lane']!r}, not {lane!r}"
        )
    rows = required_rows(cases, tag, software=record["software"])
    return problems + compare_rows(results.outcomes, rows, read_cases(unlisted_of(cases)))


def compare_rows(outcomes: dict[str, str], rows: list[Row], unlisted: list[Row]) -> list[str]:
    """Return where outcomes and lists differ."""
    problems = [f"no row ran and none is required: {sorted(outcomes)}"] if not outcomes else []
    listed = {row.node_id for row in rows}
    excused = {row.node_id for row in unlisted}
    for name in sorted(listed):
        if (outcome := outcomes.get(name, "not run")) != "passed":
            problems.append(f"required, and {outcome}: {name}")
    problems += [f"failed: {n}" for n, o in outcomes.items() if o == "failed" and n not in listed]
    for name, outcome in outcomes.items():
        known = name in listed or name in excused or name.split("[", 1)[0] in excused
        if outcome == "skipped" and name not in listed:
            problems.append(f"skipped: {name}")
        elif outcome == "passed" and not known:
            problems.append(f"passed, and no list names it: {name}")
    problems += [f"unlisted without a reason: {r.node_id}" for r in unlisted if not r.reason]
    return problems


def add(path: Path, cases: Path, tag: str | None) -> int:
    """Append the passing rows that no list names, and return how many."""
    known = {r.node_id for r in [*read_cases(cases, tag), *read_cases(unlisted_of(cases))]}
    new = [
        name
        for name, outcome in read_results(path).outcomes.items()
        if outcome == "passed" and name not in known and name.split("[", 1)[0] not in known
    ]
    prefix = f"@{tag} " if tag else ""
    with cases.open("a") as sink:
        sink.writelines(f"{prefix}{name}\n" for name in sorted(new))
    return len(new)


def self_test() -> list[str]:
    """Return which known-bad results the check lets through; empty when it catches all."""
    row, other = "packages/a/tests/test_a.py::test_one", "packages/a/tests/test_a.py::test_two[x]"
    good = {row: ""}
    attempts: dict[str, tuple[dict[str, str], str, bool, str]] = {
        # name: cases and their inner XML, suite, whether results are stale, text of the unlisted
        "a required row that failed": ({row: "<failure/>"}, "lane", False, ""),
        "a required row that skipped": ({row: "<skipped/>"}, "lane", False, ""),
        "a required row that did not run": ({other: ""}, "lane", False, f"{other} # why"),
        "a skip of an unlisted row": ({**good, other: "<skipped/>"}, "lane", False, ""),
        "a passing row that no list names": ({**good, other: ""}, "lane", False, ""),
        "an unlisted row without a reason": ({**good, other: ""}, "lane", False, other),
        "results of another lane": (good, "other", False, ""),
        "results older than the stamp": (good, "lane", True, ""),
        "no results": ({}, "lane", False, ""),
    }
    missed = [name for name, given in attempts.items() if not _attempt(row, *given)]
    if found := _attempt(row, good, "lane", False, ""):
        missed.append(f"good results are refused: {found}")
    if found := _attempt(row, {**good, other: ""}, "lane", False, f"{other[:-3]} # why"):
        missed.append(f"a reason for a whole function is refused: {found}")
    return missed


def _attempt(row: str, cases: dict[str, str], suite: str, stale: bool, unlisted: str) -> list[str]:
    with tempfile.TemporaryDirectory() as temporary:
        results, listed = Path(temporary) / "r.xml", Path(temporary) / "lane.txt"
        listed.write_text(f"# rows\n{row}\n@hardware {row}_on_a_gpu\n")
        unlisted_of(listed).write_text(unlisted + "\n")
        begin("lane", results, software=True)
        when = "2001-01-01T00:00:00" if stale else datetime.now().astimezone().isoformat()
        tests = "".join(
            f'<testcase name="t"><properties><property name="node_id" value="{name}"/>'
            f"</properties>{inner}</testcase>"
            for name, inner in cases.items()
        )
        if cases:
            xml = f'<testsuites><testsuite name="{suite}" timestamp="{when}">{tests}'
            results.write_text(xml + "</testsuite></testsuites>")
        return compare("lane", results, listed)


def main() -> int:
    """Run one command; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("begin", "check", "add"):
        command = commands.add_parser(name)
        command.add_argument("lane")
        command.add_argument("results", type=Path)
        if name == "begin":
            command.add_argument("--software", action="store_true", help="no GPU: lavapipe")
    commands.add_parser("self-test")
    arguments = parser.parse_args()
    if arguments.command == "self-test":
        problems = self_test()
        print("\n".join(problems) or "check-required-cases catches every known-bad result")
        return min(len(problems), 1)
    if arguments.command == "begin":
        begin(arguments.lane, arguments.results, software=arguments.software)
        return 0
    lane = load_lanes(ROOT).lanes[arguments.lane]
    if lane.cases is None:
        sys.exit(f"lane {lane.name} has no list of required cases in .config/lanes.toml")
    cases = ROOT / lane.cases
    if arguments.command == "add":
        count = add(arguments.results, cases, lane.tag)
        print(f"{count} rows appended to {cases}: read them before you commit")
        return 0
    problems = compare(lane.name, arguments.results, cases, lane.tag)
    print("\n".join(problems) or f"{lane.name}: every required case passed")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
