"""AMD GPUs as a poot device through HIP."""

__all__: list[str] = []
