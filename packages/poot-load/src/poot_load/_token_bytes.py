"""The bytes that a vocabulary's pieces stand for."""

from __future__ import annotations

import re
from functools import cache

__all__ = ["SPACE", "piece_bytes"]

SPACE = "\u2581"
"""The visible space of sentencepiece."""

_BYTE_PIECE = re.compile(r"^<0x([0-9A-F]{2})>$")


def piece_bytes(text: str, *, by_bytes: bool) -> bytes:
    """Return the bytes of a piece that is no control token.

    Args:
        text: The piece as the vocabulary spells it.
        by_bytes: Whether each character stands for a byte (GPT-2), or text for itself with visible
            spaces and ``<0x0A>`` for a byte (sentencepiece).
    """
    if by_bytes:
        table = _byte_of_character()
        try:
            return bytes([table[character] for character in text])
        except KeyError:
            return text.encode()  # a piece that was added as plain text
    if (match := _BYTE_PIECE.match(text)) is not None:
        return bytes([int(match[1], 16)])
    return text.replace(SPACE, " ").encode()


@cache
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's printable stand-ins: visible Latin-1 as itself, the rest from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if chr(byte) not in table]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
