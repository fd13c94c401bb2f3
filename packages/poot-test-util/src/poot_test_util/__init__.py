"""Shared fixtures and gates of poot's own tests; never published."""

__all__: list[str] = []
