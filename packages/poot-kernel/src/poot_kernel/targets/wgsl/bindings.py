"""Which bindings a shader's arrays use, and the functions through which its code accesses them.

As generated, each array has a binding of its own. Adapters bind only so many storage buffers and only
so many bytes of one, and a buffer that one binding writes may not be read-only in another. A device
that knows which buffers a launch passes therefore has this part of the shader written anew: several
arrays may share a binding, and a long array may take several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poot_core import CompileError

__all__ = ["ArrayAccess", "Binding", "array_accesses", "array_section", "bind_arrays",
           "table_line", "table_words"]  # fmt: skip

_BEGIN, _END = "// arrays\n", "// end of arrays\n"
_ARRAY = re.compile(r"^// array (\d+) (\S+) (read|write) (.+)$", re.MULTILINE)
_TABLE = re.compile(r"^// table ([\d ]+)$", re.MULTILINE)
_ATOMIC = "atomic<u32>"


@dataclass(frozen=True, slots=True)
class ArrayAccess:
    """How a shader accesses one of its arrays.

    Attributes:
        element: Element type: ``u32``, ``vec4<u32>`` or ``atomic<u32>``.
        is_written: Whether it is declared as writable.
        kinds: Accesses: ``load``, ``store``, ``exchange`` and atomic ``add and max min or xor``.
    """

    element: str
    is_written: bool
    kinds: tuple[str, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 16 if self.element.startswith("vec4") else 4


@dataclass(frozen=True, slots=True)
class Binding:
    """Where an array of a shader is bound.

    Attributes:
        indices: Binding numbers, 1 and up; 0 holds the arguments. Several hold parts of equal size.
        is_written: Whether they are declared as writable.
        part_bytes: Bytes of each part but the last.
    """

    indices: tuple[int, ...]
    is_written: bool
    part_bytes: int = 0


def array_section(
    arrays: Mapping[int, ArrayAccess], bindings: Mapping[int, Binding] | None = None
) -> str:
    """Return the part of a shader that declares arrays, by parameter number, and accesses them."""
    if bindings is None:
        bindings = {
            number: Binding((index,), arrays[number].is_written)
            for index, number in enumerate(sorted(arrays), 1)
        }
    declared: dict[int, str] = {}
    lines: list[str] = []
    functions: list[str] = []
    for number, access in sorted(arrays.items()):
        binding = bindings[number]
        word = "write" if access.is_written else "read"
        lines.append(f"// array {number} {access.element} {word} {' '.join(access.kinds)}\n")
        for index in binding.indices:
            if declared.setdefault(index, access.element) != access.element:
                raise CompileError(
                    f"arrays of {declared[index]} and of {access.element} share binding {index}"
                )
        functions += [_function(number, access, kind, binding) for kind in access.kinds]
    written = {i for binding in bindings.values() if binding.is_written for i in binding.indices}
    for index, element in sorted(declared.items()):
        mode = "read_write" if index in written else "read"
        lines.append(
            f"@group(0) @binding({index}) var<storage, {mode}> b{index}: array<{element}>;\n"
        )
    return "".join([_BEGIN, *lines, *functions, _END])


def _function(number: int, access: ArrayAccess, kind: str, binding: Binding) -> str:
    value = "vec4<u32>" if access.element_bytes == 16 else "u32"
    extra = {"load": "", "exchange": ", old: u32, next: u32"}.get(kind, f", x: {value}")
    returned = {"load": value, "store": "", "exchange": "vec2<u32>"}.get(kind, "u32")
    arrow = f" -> {returned}" if returned else ""
    body = ""
    size = binding.part_bytes // access.element_bytes
    for part, index in enumerate(binding.indices):
        place = f"b{index}[i - {part * size}u]" if part else f"b{index}[i]"
        statements = _statements(kind, place, is_atomic=access.element == _ATOMIC)
        if part + 1 < len(binding.indices):
            leave = "" if returned else " return;"
            body += f"  if (i < {(part + 1) * size}u) {{ {statements}{leave} }}\n"
        else:
            body += f"  {statements}\n"
    return f"fn {kind}{number}(i: u32{extra}){arrow} {{\n{body}}}\n"


def _statements(kind: str, place: str, *, is_atomic: bool) -> str:
    match kind:
        case "load":
            return f"return atomicLoad(&{place});" if is_atomic else f"return {place};"
        case "store":
            return f"atomicStore(&{place}, x);" if is_atomic else f"{place} = x;"
        case "exchange":
            return (
                f"let done = atomicCompareExchangeWeak(&{place}, old, next); "
                "return vec2<u32>(done.old_value, select(0u, 1u, done.exchanged));"
            )
        case _:
            return f"return atomic{kind.capitalize()}(&{place}, x);"


def array_accesses(code: str) -> dict[int, ArrayAccess]:
    """Return how a shader accesses its arrays, by parameter number."""
    return {
        int(number): ArrayAccess(element, word == "write", tuple(kinds.split()))
        for number, element, word, kinds in _ARRAY.findall(code)
    }


def bind_arrays(code: str, bindings: Iterable[tuple[int, Binding]]) -> str:
    """Return the shader with other bindings.

    Args:
        code: A generated shader.
        bindings: Parameter number and binding of each of its arrays.

    Raises:
        CompileError: If arrays of different element types are to share a binding, or one is missing.
    """
    arrays, chosen = array_accesses(code), dict(bindings)
    if arrays.keys() - chosen.keys():
        raise CompileError(f"arrays {sorted(arrays.keys() - chosen.keys())} have no binding")
    start, end = code.index(_BEGIN), code.index(_END) + len(_END)
    return code[:start] + array_section(arrays, chosen) + code[end:]


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
