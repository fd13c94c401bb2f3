"""What a simulated kernel can do wrong."""

from __future__ import annotations

from poot_core import PootError

__all__ = ["SimulationFault", "UnknownInstruction"]


class SimulationFault(PootError, AssertionError):
    """The program did what real hardware punishes with wrong results or a lost context.

    Attributes:
        kind: ``bounds``, ``wait``, ``barrier`` or ``runaway``.
    """

    kind: str = ""


class UnknownInstruction(PootError, LookupError):
    """The interpreter does not know an instruction or a modifier; nothing is guessed."""
