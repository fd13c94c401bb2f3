"""AMD's matrix instructions: WMMA on wave32 (gfx11), MFMA on wave64 (gfx9)."""

from __future__ import annotations

from poot_core import UnsupportedError
from poot_kernel.targets.common.fragments import Bit, bits_along
from poot_kernel.targets.common.products import Atom, AtomSide, dot_atoms

__all__ = ["Architecture", "architecture"]


class Architecture:
    """What the generator needs to know of one GPU architecture.

    Attributes:
        subgroup_size: Lanes of a wave.
        has_mixed_dot: Whether byte dot products take one signed and one unsigned side.
        atoms: Matrix instructions.
    """

    def __init__(self, subgroup_size: int, has_mixed_dot: bool, atoms: tuple[Atom, ...]) -> None:
        self.subgroup_size, self.has_mixed_dot = subgroup_size, has_mixed_dot
        self.atoms = (*atoms, *dot_atoms(subgroup_size))


def _wmma(name: str, element: str) -> Atom:
    """16x16x16: lanes 0-15 hold rows of A and columns of B whole, lanes 16-31 repeat them."""
    whole = bits_along(0, 1, 16)
    return Atom(
        name=f"llvm.amdgcn.wmma.f32.16x16x16.{name}.v8f32.v16{element}",
        m=16, n=16, k=16, inputs=(name, name), output="f32",
        a=AtomSide(bits_along(1, 1, 16), (*whole, None)),
        b=AtomSide(bits_along(0, 1, 16), (*bits_along(1, 1, 16), None)),
        acc=AtomSide(bits_along(0, 2, 8), (*bits_along(1, 1, 16), Bit(0, 1))),
    )  # fmt: skip


def _mfma(name: str, instruction: str) -> Atom:
    """16x16x16: four neighbouring k a lane, lanes / 16 along k; results four rows a lane."""
    return Atom(
        name=f"llvm.amdgcn.mfma.f32.{instruction}",
        m=16, n=16, k=16, inputs=(name, name), output="f32",
        a=AtomSide(bits_along(1, 1, 4), (*bits_along(0, 1, 16), *bits_along(1, 4, 4))),
        b=AtomSide(bits_along(0, 1, 4), (*bits_along(1, 1, 16), *bits_along(0, 4, 4))),
        acc=AtomSide(bits_along(0, 1, 4), (*bits_along(1, 1, 16), *bits_along(0, 4, 4))),
    )  # fmt: skip


def architecture(name: str) -> Architecture:
    """Return the facts of an architecture.

    Raises:
        UnsupportedError: If it is not covered yet.
    """
    if name.startswith("gfx11"):
        return Architecture(32, True, (_wmma("bf16", "i16"), _wmma("f16", "f16")))
    if name in ("gfx90a", "gfx942", "gfx950"):
        atoms = (_mfma("bf16", "16x16x16bf16.1k"), _mfma("f16", "16x16x16f16"))
        return Architecture(64, False, atoms)
    raise UnsupportedError(f"{name!r} is not covered yet: gfx11xx, gfx90a, gfx942 and gfx950 are")
