"""poot's kernels: hand-written ones and generators, asked for by typed requests."""

__all__: list[str] = []
