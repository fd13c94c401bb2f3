"""Classes and lanes of tests: what a test needs, and so where it runs. ``.config/lanes.toml`` says."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DEVICES", "Lane", "Lanes", "TestCase", "find_root", "load_lanes"]

DEVICES = ("ptx", "rocm", "vulkan", "wgpu")
"""The devices that a lane may need; the host CPU is none in this sense."""

CLASSES = ("model-free", "real-dims", "checkpoint", "device", "sim", "client", "web")
_SETTINGS = Path(".config") / "lanes.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCase:
    """One collected test.

    Attributes:
        node_id: As pytest names it, relative to the workspace.
        package: Folder under ``packages/``.
        marks: Names of its marks.
        devices: Devices that its marks and its package name, in order.
        groups: Names of its xdist groups.
    """

    __test__ = False  # the name would make pytest collect it

    node_id: str
    package: str
    marks: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """The name without the parameters of one case."""
        return self.node_id.split("[", 1)[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """What the test needs; more than one for a checkpoint on a device."""
        found = tuple(c for c in CLASSES if c in self.marks)
        if found:
            return found
        return ("real-dims",) if self.function.endswith("_real_dims") else ("model-free",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """How one lane runs.

    Attributes:
        name: As in ``just test-<name>``.
        environment: Words of the ``[environment]`` table.
        device: What must open before any test starts.
        software: Whether a software adapter will do where there is no GPU.
        cases: File of the rows that must pass, relative to the workspace.
        only_listed: Whether the lane runs the listed rows and nothing else.
        tag: Rows of ``cases`` that carry this tag, or those without one that names a lane.
        workers: Worker processes of pytest-xdist.
    """

    name: str
    environment: tuple[str, ...] = ()
    device: str | None = None
    software: bool = False
    cases: str | None = None
    only_listed: bool = False
    tag: str | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The whole of ``.config/lanes.toml``.

    Attributes:
        lanes: By name.
        packages: ``pure``, ``mixed`` or a reason to leave the package out, by package.
        pending: Lanes that no test is in yet.
        environment: Variables by word.
        groups: Classes that run one at a time, by name of the group.
        kernel_packages: Packages whose device tests are kernel suites.
        kernel_device: The device that these run on.
    """

    lanes: dict[str, Lane]
    packages: dict[str, str]
    pending: tuple[str, ...] = ()
    environment: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    kernel_packages: tuple[str, ...] = ()
    kernel_device: str = "wgpu"

    def is_gated(self, package: str) -> bool:
        """Whether the model-free lane covers a package."""
        return self.packages.get(package) in {"pure", "mixed"}

    def lanes_of(self, test: TestCase) -> tuple[str, ...]:
        """Return the lanes that select a test; empty where it runs nowhere."""
        classes = set(test.classes)
        for one, lane in (("sim", "sim"), ("client", "clients"), ("web", "web")):
            if one in classes:
                return (lane,)
        if "checkpoint" in classes:
            if "large" in test.marks:
                return ("checkpoint-large",)
            if "device" in classes:
                return tuple(f"checkpoint-{name}" for name in test.devices)
            return ("checkpoint",)
        if "device" in classes:
            if test.package in self.kernel_packages:
                return ("device-kernels",)
            return tuple(f"device-{name}" for name in test.devices)
        if "real-dims" in classes:
            return ("real-dims-long",) if "slow" in test.marks else ("real-dims",)
        return ("model-free",) if self.is_gated(test.package) else ()

    def groups_of(self, test: TestCase) -> tuple[str, ...]:
        """Return the one-at-a-time groups that a test belongs to."""
        return tuple(name for name, held in self.groups.items() if set(held) & set(test.classes))


def find_root(start: Path) -> Path | None:
    """Return the workspace that holds ``start``, or None outside of one."""
    for folder in (start, *start.parents):
        if (folder / _SETTINGS).is_file():
            return folder
    return None


def load_lanes(root: Path) -> Lanes:
    """Read ``.config/lanes.toml``.

    Raises:
        ValueError: If it names a lane or a word that it does not define.
    """
    table: dict[str, Any] = tomllib.loads((root / _SETTINGS).read_text())
    lanes = {name: _lane(name, given) for name, given in table["lanes"].items()}
    unknown = set(table["pending"]) - set(lanes)
    unknown |= {w for lane in lanes.values() for w in lane.environment} - set(table["environment"])
    if unknown:
        raise ValueError(f"{root / _SETTINGS} names {sorted(unknown)} and does not define it")
    return Lanes(
        lanes=lanes,
        packages=table["packages"],
        pending=tuple(table["pending"]),
        environment=table["environment"],
        groups={name: tuple(held) for name, held in table["groups"].items()},
        kernel_packages=tuple(table["kernels"]["packages"]),
        kernel_device=table["kernels"]["device"],
    )


def _lane(name: str, given: dict[str, Any]) -> Lane:
    rest = {key: value for key, value in given.items() if key != "environment"}
    return Lane(name=name, environment=tuple(given["environment"]), **rest)
