"""The kernel language, its typed IR, verifier, interpreter and code generators."""

__all__: list[str] = []
