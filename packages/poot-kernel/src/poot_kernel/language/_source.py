"""The source of a kernel: its tree, its places, and the error that points into it."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from poot_core import KernelSyntaxError
from poot_kernel.ir import Location

__all__ = ["Source", "read_function"]


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one function.

    Attributes:
        path: File, as Python names it.
        lines: The function's lines as they stand in the file.
        first_line: Number of the first of them.
        indent: Columns that were taken off before parsing.
    """

    path: str
    lines: tuple[str, ...]
    first_line: int
    indent: int

    def location(self, node: ast.AST) -> Location:
        """Return where a node stands; columns count from 1."""
        line = getattr(node, "lineno", 1) + self.first_line - 1
        return Location(self.path, line, getattr(node, "col_offset", 0) + self.indent + 1)

    def refuse(self, node: ast.AST, reason: str) -> KernelSyntaxError:
        """Return the error for a node that the importer cannot read."""
        at = self.location(node)
        index = at.line - self.first_line
        text = self.lines[index].rstrip() if 0 <= index < len(self.lines) else ""
        width = 1
        if getattr(node, "end_lineno", None) == getattr(node, "lineno", None):
            width = max(getattr(node, "end_col_offset", 0) - getattr(node, "col_offset", 0), 1)
        caret = " " * (at.column - 1) + "^" * width
        return KernelSyntaxError(
            f"{at}: {reason}\n    {text}\n    {caret}",
            path=self.path, line=at.line, column=at.column, excerpt=text, reason=reason,
        )  # fmt: skip


@functools.cache
def read_function(function: Callable[..., Any]) -> tuple[Source, ast.FunctionDef]:
    """Return a Python function's source and tree.

    Raises:
        KernelSyntaxError: If there is no source, or it is no plain function.
    """
    path = inspect.getsourcefile(function) or "<unknown>"
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        name = getattr(function, "__name__", repr(function))
        raise KernelSyntaxError(
            f"{path}: no source for kernel {name!r}: kernels are read from their file, so they "
            "cannot be typed into a prompt",
            path=path, line=0, column=0, excerpt="", reason="no source",
        ) from error  # fmt: skip
    indent = len(lines[0]) - len(lines[0].lstrip())
    source = Source(path, tuple(lines), first, indent)
    node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise source.refuse(node, "a kernel is a function written with 'def'")
    return source, node
