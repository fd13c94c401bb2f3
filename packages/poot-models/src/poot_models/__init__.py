"""Model families as plain tracer functions over shared components."""

__all__: list[str] = []
