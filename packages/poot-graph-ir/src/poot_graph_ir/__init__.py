"""The graph of primitive tensor equations: builder, compositions, regions, verifier, printer."""

__all__: list[str] = []
