"""What a runner is: a way to start one engine, nothing about measuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.harness.manifest import Cell

__all__ = ["NotOffered", "Plan", "Runner", "no_figures"]


class NotOffered(Exception):
    """This engine cannot run this cell here; the message says why."""


def no_figures(output: str) -> dict[str, float]:
    """Parse nothing: the harness measures from outside."""
    del output
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One process.

    Attributes:
        command: Its arguments.
        environment: Variables to set.
        parse: Returns the metrics of what it printed to stdout.
        url: Where a server answers, for the kind ``serve``.
    """

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    parse: Callable[[str], dict[str, float]] = no_figures
    url: str = ""


class Runner(Protocol):
    """Starts one engine."""

    def version(self) -> str:
        """Return what the engine calls its version; NotOffered if it is not here."""
        ...

    def plan(self, cell: Cell, model: Path, port: int) -> Plan:
        """Return the process of one repeat.

        Args:
            cell: What to run.
            model: Where the checkpoint is.
            port: A free one, for a server.

        Raises:
            NotOffered: If the engine cannot do it, or is not here.
        """
        ...
