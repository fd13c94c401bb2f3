"""The NumPy oracle: evaluates a graph tensor by tensor."""

__all__: list[str] = []
