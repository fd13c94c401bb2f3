"""The parity table that runs on any device; never published."""

__all__: list[str] = []
