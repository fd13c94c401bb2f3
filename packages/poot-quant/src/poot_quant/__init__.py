"""Packed weight formats: one descriptor per format and a NumPy decode."""

__all__: list[str] = []
