"""Hold scripts/test-model-free-inventory.tsv against the tests that exist.

``check`` fails, by name, for a test that was added, renamed, deleted or changed its class without
``regen``, for a package that the policy (`[packages]` of .config/lanes.toml) does not name, and for a
mark that a pure package must not have. ``self-test`` shows each of these failing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from collection import ROOT, Collected, collect_tests

from poot_test_util import TestCase, load_lanes

INVENTORY = ROOT / "scripts" / "test-model-free-inventory.tsv"
HEADER = (
    "# Every test of the workspace: package, class, how the class came about, test.\n"
    "# Written by `just test-model-free-inventory-regen`; a test of several classes has a row each.\n"
)
CHOSEN = frozenset({"checkpoint", "device", "sim", "client", "web"})


def rows_of(tests: Iterable[Collected], policy: Mapping[str, str]) -> list[str]:
    """Return one row for each test function and class, sorted."""
    rows: set[str] = set()
    for test in tests:
        how = "derived" if policy.get(test.package) == "pure" else "chosen"
        case = TestCase(node_id=test.node_id, package=test.package, marks=test.marks)
        rows.add("\t".join([test.package, "+".join(case.classes), how, test.function]))
    return sorted(rows)


def policy_problems(
    folders: Iterable[str], policy: Mapping[str, str], tests: Iterable[Collected]
) -> list[str]:
    """Return where packages, policy and marks disagree.

    Policy rows of packages that do not exist yet say nothing.
    """
    problems = [
        f"{name} is in no policy: add it to [packages] of .config/lanes.toml"
        for name in sorted(set(folders) - set(policy))
    ]
    problems += [
        f"{name}: the policy gives no reason" for name, how in policy.items() if not how.strip()
    ]
    problems += sorted(
        {
            f"{test.package} is pure by policy, and {test.function} is marked "
            + ", ".join(sorted(test.marks & CHOSEN))
            for test in tests
            if policy.get(test.package) == "pure" and test.marks & CHOSEN
        }
    )
    return problems


def inventory_problems(listed: Iterable[str], rows: Iterable[str]) -> list[str]:
    """Return what the inventory and the tests do not have in common, by name."""
    old, new = set(listed), set(rows)
    names = {row.split("\t")[-1] for row in old}
    problems = []
    for row in sorted(new - old):
        name = row.split("\t")[-1]
        what = "its class or package changed" if name in names else "not in the inventory"
        problems.append(f"{what}: {row}")
    current = {row.split("\t")[-1] for row in new}
    problems += [
        f"in the inventory, and no such test: {row}"
        for row in sorted(old - new)
        if row.split("\t")[-1] not in current
    ]
    stale = [r for r in sorted(old - new) if r.split("\t")[-1] in current]
    return problems + [f"in the inventory, and no longer so: {row}" for row in stale]


def read_inventory(path: Path = INVENTORY) -> list[str]:
    """Return the rows of the inventory."""
    if not path.is_file():
        return []
    return [row for row in path.read_text().splitlines() if row and not row.startswith("#")]


def package_folders() -> list[str]:
    """Return the folders of the packages."""
    return [p.parent.name for p in (ROOT / "packages").glob("*/pyproject.toml")]


def self_test() -> list[str]:
    """Return which known-bad inventories pass."""

    def test(name: str, *marks: str) -> Collected:
        node_id = f"packages/poot-a/tests/test_a.py::{name}"
        return Collected(node_id=node_id, package="poot-a", marks=frozenset(marks))

    mixed, pure = {"poot-a": "mixed"}, {"poot-a": "pure"}
    one, two = test("test_one[x]"), test("test_two")
    listed = rows_of([one, two], mixed)
    attempts = {
        "a test that was added": inventory_problems(
            listed, rows_of([one, two, test("test_new")], mixed)
        ),
        "a test that was renamed": inventory_problems(
            listed, rows_of([one, test("test_2")], mixed)
        ),
        "a test that was deleted": inventory_problems(listed, rows_of([one], mixed)),
        "a test whose class changed": inventory_problems(
            listed, rows_of([one, test("test_two", "device")], mixed)
        ),
        "a package in no policy": policy_problems(["poot-a", "poot-b"], mixed, []),
        "an exclusion without a reason": policy_problems(["poot-a"], {"poot-a": " "}, []),
        "a device test of a pure package": policy_problems(
            ["poot-a"], pure, [test("test_three", "device")]
        ),
    }
    missed = [name for name, problems in attempts.items() if not problems]
    if inventory_problems(listed, rows_of([two, one, test("test_one[y]")], mixed)):
        missed.append("a good inventory is refused")
    if "real-dims" not in rows_of([test("test_llama_real_dims[x]")], pure)[0]:
        missed.append("the class of *_real_dims")
    return missed


def main() -> int:
    """Run one command; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["check", "regen", "self-test"])
    command = parser.parse_args().command
    if command == "self-test":
        problems = self_test()
        print("\n".join(problems) or "the inventory catches every known-bad input")
        return min(len(problems), 1)
    policy = load_lanes(ROOT).packages
    tests = collect_tests(fresh=command == "regen")
    rows = rows_of(tests, policy)
    if command == "regen":
        INVENTORY.write_text(HEADER + "".join(f"{row}\n" for row in rows))
        print(f"{len(rows)} rows in {INVENTORY.relative_to(ROOT)}")
        return 0
    problems = policy_problems(package_folders(), policy, tests)
    differences = inventory_problems(read_inventory(), rows)
    if differences:
        differences.append("run `just test-model-free-inventory-regen` and commit the inventory")
    print("\n".join(problems + differences) or f"{len(rows)} tests are in the inventory")
    return min(len(problems + differences), 1)


if __name__ == "__main__":
    sys.exit(main())
