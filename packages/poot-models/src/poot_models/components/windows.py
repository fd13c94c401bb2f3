"""Which layers see only a window of what came before."""

from __future__ import annotations

from collections.abc import Sequence

from poot_models._reader import ConfigReader

__all__ = ["read_qwen_windows", "read_windows"]


def read_windows(
    reader: ConfigReader, default_types: Sequence[str], *, window: int | None
) -> tuple[int | None, ...]:
    """Return the window of each layer from ``layer_types``.

    Args:
        reader: The model's configuration.
        default_types: Type of each layer where the configuration names none.
        window: Tokens that a layer of type ``sliding_attention`` sees, itself included.

    Raises:
        CheckpointError: If a layer type is unknown, or slides although there is no window.
    """
    types: Sequence[str] = default_types
    if "layer_types" in reader:
        allowed = ("full_attention", "sliding_attention")
        types = reader.words("layer_types", len(default_types), allowed)
    if window is None and "sliding_attention" in types:
        raise reader.error("sliding_window", None, "a number of tokens, since layers slide")
    return tuple(window if name == "sliding_attention" else None for name in types)


def read_qwen_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """Return the windows of a Qwen model: ``use_sliding_window`` switches them as a whole."""
    window = reader.optional_integer("sliding_window")
    first = reader.integer("max_window_layers", 28, minimum=0)
    if not reader.flag("use_sliding_window", False):
        window = None
    slides = [window is not None and index >= first for index in range(num_layers)]
    types = ["sliding_attention" if slide else "full_attention" for slide in slides]
    return read_windows(reader, types, window=window)
