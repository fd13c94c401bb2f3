"""The generation driver: tokenizer, chat templates, scheduler, paged KV, sampling, and the poot command."""

__all__: list[str] = []
