"""Products without matrix instructions, in the form of matrix instructions.

A lane holds one column: chains of fused multiply-adds in ascending order of k for floats, dot
products of four bytes for integers.
"""

from __future__ import annotations

from poot_kernel.targets.common.fragments import bits_along
from poot_kernel.targets.common.products import Atom, AtomSide

__all__ = ["vector_atoms"]

_FLOATS = ("f32", "bf16", "f16")
_BYTES = ("i8", "u8")


def vector_atoms(num_lanes: int) -> tuple[Atom, ...]:
    """Return the products that a subgroup of ``num_lanes`` computes."""
    columns = bits_along(1, 1, num_lanes)
    alone = (None,) * len(columns)

    def atom(name: str, k: int, inputs: tuple[str, str], output: str) -> Atom:
        return Atom(
            name=name, m=1, n=num_lanes, k=k, inputs=inputs, output=output, is_dot=name == "dot4",
            a=AtomSide(bits_along(1, 1, k), alone),
            b=AtomSide(bits_along(0, 1, k), columns),
            acc=AtomSide((), columns),
        )  # fmt: skip

    floats = [atom("fma", 8, (name, name), "f32") for name in _FLOATS]
    whole = [atom("dot4", 32, (a, b), "i32") for a in _BYTES for b in _BYTES]
    return (*floats, *whole)
