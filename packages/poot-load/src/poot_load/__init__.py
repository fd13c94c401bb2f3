"""Bounded readers for GGUF and safetensors checkpoints, their configuration and tokenizer data."""

__all__: list[str] = []
