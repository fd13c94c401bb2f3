"""The host CPU as a poot device: memory, thread team, launch and replay."""

__all__: list[str] = []
