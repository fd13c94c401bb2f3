"""What can be measured: models, engines and scenarios, and which of them meet in a cell."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

__all__ = ["Cell", "Engine", "Manifest", "ManifestError", "Model", "Scenario", "read_manifest"]

KINDS = ("bench", "start", "serve")


class ManifestError(ValueError):
    """The manifest says something that the harness does not understand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint.

    Attributes:
        name: In the manifest and in records.
        file: A file or folder below the models directory.
        read_mb: Weights that one decoded token reads, in MB, or None if nobody counted.
    """

    name: str
    file: str
    read_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Something that runs models.

    Attributes:
        name: In the manifest and in records.
        runner: Which runner knows how to start it.
        options: Further arguments of its command.
        environment: Variables that are set for it.
    """

    name: str
    runner: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What an engine is asked to do.

    Attributes:
        name: In the manifest and in records.
        kind: ``bench``, ``start`` or ``serve``.
        prefill: Random tokens of the prompt; 0 measures no prefill.
        decode: Tokens of an answer; 0 measures no decode.
        depth: Tokens in the context before decode.
        batch: Sequences that decode together.
        threads: Of the engine, or None for all cores that it may use.
        cores: Cores that the engine is bound to, or None.
        neighbour: Whether a process keeps the last core busy 30% of the time.
        empty_cache: Whether the engine starts without anything cached on disk.
        clients: Clients that stream at once.
        requests: Requests of all clients together.
    """

    name: str
    kind: str
    prefill: int = 0
    decode: int = 0
    depth: int = 0
    batch: int = 1
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    neighbour: bool = False
    empty_cache: bool = False
    clients: int = 1
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one engine in one scenario."""

    model: Model
    engine: Engine
    scenario: Scenario

    @property
    def name(self) -> str:
        """``model/engine/scenario``."""
        return f"{self.model.name}/{self.engine.name}/{self.scenario.name}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """All cells, in the order of the file."""

    cells: tuple[Cell, ...]

    def select(self, words: list[str]) -> tuple[Cell, ...]:
        """Return the cells whose name has every word as a part between slashes, or begins one.

        A word with slashes, such as a cell's whole name, is several words.

        Raises:
            ManifestError: If a word fits no cell, or no cell fits all of them.
        """
        words = [part for word in words for part in word.split("/")]
        for word in words:
            if not any(_fits(cell, word) for cell in self.cells):
                known = sorted({part for cell in self.cells for part in cell.name.split("/")})
                raise ManifestError(f"no cell has {word!r} in its name; there are {known}")
        found = tuple(cell for cell in self.cells if all(_fits(cell, word) for word in words))
        if not found:
            raise ManifestError(f"no cell has all of {words} in its name")
        return found


def _fits(cell: Cell, word: str) -> bool:
    """Return whether a word is one of the three names; with ``*`` at its end, begins one."""
    parts = cell.name.split("/")
    if word.endswith("*"):
        return any(part.startswith(word[:-1]) for part in parts)
    return word in parts


def read_manifest(path: Path, runners: tuple[str, ...]) -> Manifest:
    """Return what a manifest says.

    Raises:
        ManifestError: If a key, a name, a kind or a runner is unknown, or a value has the wrong type.
    """
    raw = tomllib.loads(path.read_text())
    if unknown := set(raw) - {"models", "engines", "scenarios", "cells"}:
        raise ManifestError(f"{path.name}: unknown tables {sorted(unknown)}")
    models = {n: _make(Model, n, v) for n, v in raw.get("models", {}).items()}
    engines = {n: _make(Engine, n, v) for n, v in raw.get("engines", {}).items()}
    scenarios = {n: _make(Scenario, n, v) for n, v in raw.get("scenarios", {}).items()}
    for engine in engines.values():
        if engine.runner not in runners:
            raise ManifestError(
                f"engine {engine.name!r} wants the runner {engine.runner!r}; there are {runners}"
            )
    for scenario in scenarios.values():
        _check_scenario(scenario)
    cells: dict[str, Cell] = {}
    for number, block in enumerate(raw.get("cells", [])):
        names = [_names(block, key, number) for key in ("models", "engines", "scenarios")]
        for model, engine, scenario in product(*names):
            cell = Cell(
                _named(models, model, "model"),
                _named(engines, engine, "engine"),
                _named(scenarios, scenario, "scenario"),
            )
            cells[cell.name] = cell
    return Manifest(tuple(cells.values()))


def _make(kind: type[Any], name: str, values: Mapping[str, Any]) -> Any:
    allowed = {f.name for f in fields(kind)} - {"name"}
    if unknown := set(values) - allowed:
        raise ManifestError(
            f"{kind.__name__.lower()} {name!r}: unknown keys {sorted(unknown)}; "
            f"there are {sorted(allowed)}"
        )
    if "/" in name:
        raise ManifestError(f"{name!r}: a name has no slash")
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return kind(name=name, **frozen)
    except TypeError as error:
        raise ManifestError(f"{kind.__name__.lower()} {name!r}: {error}") from error


def _check_scenario(scenario: Scenario) -> None:
    if scenario.kind not in KINDS:
        raise ManifestError(
            f"scenario {scenario.name!r} is of kind {scenario.kind!r}; there are {KINDS}"
        )
    for name in ("prefill", "decode", "depth", "batch", "clients", "requests"):
        value = getattr(scenario, name)
        if type(value) is not int or value < 0:
            raise ManifestError(f"scenario {scenario.name!r}: {name} is {value!r}, no count")
    if scenario.kind == "bench" and not (scenario.prefill or scenario.decode):
        raise ManifestError(f"scenario {scenario.name!r} measures neither prefill nor decode")


def _names(block: Mapping[str, Any], key: str, number: int) -> list[str]:
    value = block.get(key)
    if set(block) != {"models", "engines", "scenarios"} or not isinstance(value, list):
        raise ManifestError(f"cells {number}: lists 'models', 'engines' and 'scenarios', no more")
    return value


def _named(table: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in table:
        raise ManifestError(f"a cell names the {kind} {name!r}; there are {sorted(table)}")
    return table[name]
