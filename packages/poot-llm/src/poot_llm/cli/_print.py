"""Printing shared by the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["print_json", "print_pairs", "progress", "sizes"]


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    json.dump(document, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a small table of names and values on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    Console().print(table, markup=False)


@contextmanager
def progress(text: str) -> Generator[None]:
    """Show on a terminal's stderr what is going on; the line goes away when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"\x1b[2m{text} ...\x1b[0m")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def sizes(nbytes: float) -> str:
    """Return a size for people.

    >>> sizes(98_000_000)
    '98.0 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError("the loop returns")
