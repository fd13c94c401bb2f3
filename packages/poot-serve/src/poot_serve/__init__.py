"""The OpenAI-compatible HTTP server."""

__all__: list[str] = []
