"""What the generator knows of AMD architectures; their matrix instructions: WMMA, MFMA."""

from __future__ import annotations

from poot_core import UnsupportedError
from poot_kernel.targets.common.fragments import Bit, bits_along
from poot_kernel.targets.common.products import Atom, AtomSide, dot_atoms

__all__ = ["Architecture", "architecture", "target_features", "wave_size"]


class Architecture:
    """What the generator needs to know of one GPU architecture.

    Attributes:
        name: Such as ``gfx1100``.
        subgroup_size: Lanes of a wave.
        has_mixed_dot: Whether byte dot products take one signed and one unsigned side.
        has_row_exchange: Whether DPP exchanges lanes of a row of 16 by any mask, and the two rows
            of 32 lanes (RDNA); otherwise quads alone.
        atoms: Matrix instructions.
    """

    def __init__(
        self, name: str, subgroup_size: int, *, has_mixed_dot: bool = False,
        has_row_exchange: bool = False, atoms: tuple[Atom, ...] = (),
    ) -> None:  # fmt: skip
        self.name, self.subgroup_size = name, subgroup_size
        self.has_mixed_dot, self.has_row_exchange = has_mixed_dot, has_row_exchange
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


def _wmma_split(name: str, element: str) -> Atom:
    """16x16x16 of gfx12: lanes 0-15 hold the first eight k, lanes 16-31 the others."""
    return Atom(
        name=f"llvm.amdgcn.wmma.f32.16x16x16.{name}.v8f32.v8{element}",
        m=16, n=16, k=16, inputs=(name, name), output="f32",
        a=AtomSide(bits_along(1, 1, 8), (*bits_along(0, 1, 16), Bit(1, 8))),
        b=AtomSide(bits_along(0, 1, 8), (*bits_along(1, 1, 16), Bit(0, 8))),
        acc=AtomSide(bits_along(0, 1, 8), (*bits_along(1, 1, 16), Bit(0, 8))),
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


_RDNA4 = ("gfx1200", "gfx1201")
_CDNA = ("gfx90a", "gfx942", "gfx950")


def architecture(name: str) -> Architecture:
    """Return the facts of an architecture.

    Raises:
        UnsupportedError: If it is not covered yet.
    """
    if name.startswith("gfx103"):
        return Architecture(name, 32, has_row_exchange=True)
    if name.startswith("gfx11"):
        atoms = (_wmma("bf16", "i16"), _wmma("f16", "f16"))
        return Architecture(name, 32, has_mixed_dot=True, has_row_exchange=True, atoms=atoms)
    if name in _RDNA4:
        atoms = (_wmma_split("bf16", "i16"), _wmma_split("f16", "f16"))
        return Architecture(name, 32, has_mixed_dot=True, has_row_exchange=True, atoms=atoms)
    if name in _CDNA:
        atoms = (_mfma("bf16", "16x16x16bf16.1k"), _mfma("f16", "16x16x16f16"))
        return Architecture(name, 64, atoms=atoms)
    covered = ("gfx103x", "gfx11xx", *_RDNA4, *_CDNA)
    raise UnsupportedError(f"{name!r} is not covered yet; covered are {', '.join(covered)}")


def wave_size(name: str) -> int:
    """Return how many lanes poot's kernels for an architecture have.

    Raises:
        UnsupportedError: If it is not covered yet.
    """
    return architecture(name).subgroup_size


def target_features(name: str) -> frozenset[str]:
    """Return the features of a target: what planners may ask of kernels for an architecture.

    ``mma-k16``: one matrix instruction of 16 k serves every tile shape, so that sums have one order.

    Raises:
        UnsupportedError: If it is not covered yet.
    """
    has_matrix = any(not atom.is_dot for atom in architecture(name).atoms)
    return frozenset({"mma-k16"} if has_matrix else ())
