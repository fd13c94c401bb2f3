"""Which bindings a shader's arrays use: one each as generated, fewer where a launch merges them.

Adapters bind only so many storage buffers, and a buffer that one binding writes may not be read-only
in another. A device that knows which buffers a launch passes therefore rewrites the declarations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from poot_core import CompileError

__all__ = ["Binding", "array_views", "bind_arrays", "declaration", "table_line", "table_words"]

_DECLARATION = re.compile(
    r"^@group\(0\) @binding\(\d+\) var<storage, (\w+)> m(\d+): array<(.+)>;$", re.MULTILINE
)
_TABLE = re.compile(r"^// table ([\d ]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Binding:
    """Where an array of a shader is bound.

    Attributes:
        index: Binding number, 1 and up; 0 holds the arguments.
        is_written: Whether it is declared as writable.
    """

    index: int
    is_written: bool


def declaration(number: int, element: str, binding: Binding) -> str:
    """Return the line that declares array argument ``number``."""
    access = "read_write" if binding.is_written else "read"
    return (
        f"@group(0) @binding({binding.index}) var<storage, {access}> m{number}: array<{element}>;"
    )


def table_line(words: Sequence[int]) -> str:
    """Return the comment that tells a device what a table holds.

    A table in the code itself is copied for each invocation, and drivers take minutes over it.
    """
    return f"// table {' '.join(map(str, words))}\n"


def table_words(code: str) -> list[int]:
    """Return what follows the arguments of a shader: its tables, each from a vector's start."""
    found: list[int] = []
    for listed in _TABLE.findall(code):
        words = [int(word) for word in listed.split()]
        found += words + [0] * (-len(words) % 4)
    return found


def array_views(code: str) -> dict[int, tuple[str, bool]]:
    """Return element type and whether it is written of each declared array, by parameter number."""
    return {
        int(number): (element, access == "read_write")
        for access, number, element in _DECLARATION.findall(code)
    }


def bind_arrays(code: str, bindings: Sequence[tuple[int, Binding]]) -> str:
    """Return the shader with other bindings: arrays of one binding become one array.

    Args:
        code: A generated shader.
        bindings: Parameter number and binding of each of its arrays.

    Raises:
        CompileError: If arrays of different element types are to share a binding, or one is missing.
    """
    views = {number: element for number, (element, _) in array_views(code).items()}
    chosen = dict(bindings)
    if views.keys() - chosen.keys():
        raise CompileError(f"arrays {sorted(views.keys() - chosen.keys())} have no binding")
    first: dict[int, int] = {}
    for number in sorted(views):
        first.setdefault(chosen[number].index, number)
    names = {number: first[chosen[number].index] for number in views}
    if any(views[number] != views[other] for number, other in names.items()):
        raise CompileError(f"arrays of different element types share a binding: {views}, {chosen}")

    def declared(match: re.Match[str]) -> str:
        number = int(match[2])
        if names[number] != number:
            return ""
        return declaration(number, views[number], chosen[number])

    text = _DECLARATION.sub(declared, code)
    merged = {n: other for n, other in names.items() if n != other}
    if not merged:
        return text
    return re.sub(r"\bm(\d+)\b", lambda m: f"m{merged.get(int(m[1]), int(m[1]))}", text)
