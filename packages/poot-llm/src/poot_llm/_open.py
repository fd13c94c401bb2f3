"""Opens a model: checkpoint, then family, then engine, then tokenizer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from poot_core import CheckpointError, RequestError, Settings
from poot_llm._memory import free_memory_bytes
from poot_llm._open_text import read_tokenizer, sampling_defaults
from poot_llm._tokenizer import Tokenizer

if TYPE_CHECKING:
    from poot_executor import Engine, EngineOptions
    from poot_llm._vocabulary import Vocabulary
    from poot_load import Checkpoint, DownloadProgress
    from poot_models import KVLayer, Model

__all__ = [
    "OpenOptions",
    "OpenedModel",
    "bytes_per_token",
    "end_token_ids",
    "engine_options",
    "open_model",
    "read_model",
]

DEFAULT_CONTEXT = 4096
BLOCK_SIZE = 32
MOST_THREADS = 1024
_LEAST_POOL_BYTES = 512 << 20
_POOL_SHARE = 0.4
"""Share of the free memory that the KV pool may take. Host memory that no sequence has used yet is not
resident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """What a caller asks of a model; see ``LLM``.

    Attributes:
        kv_bytes: Size that the KV pool aims at; None takes a share of the free memory. One full
            sequence fits in any case, and no more than all sequences are given room for.
    """

    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    context: int | None = None
    max_sequences: int = 32
    max_step_tokens: int = 512
    kv_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class OpenedModel:
    """A model that is ready to run.

    Attributes:
        engine: The engine.
        tokenizer: The tokenizer, or None where the checkpoint has none.
        eos_token_ids: Tokens that end an answer.
        resources: Closes all of it.
        sampling_defaults: Fields of ``SamplingParams`` that the checkpoint recommends.
        load_s: Seconds that opening took.
    """

    engine: Engine
    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int]
    resources: ExitStack
    sampling_defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    load_s: float = 0.0

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What tokens stand for, or None where the checkpoint has no tokenizer."""
        if self.tokenizer is None:
            return None
        from poot_llm._vocabulary import Vocabulary

        return Vocabulary(self.tokenizer, self.engine.info.vocab_size, self.eos_token_ids)


def open_model(
    path: str | Path, options: OpenOptions, progress: DownloadProgress | None = None
) -> OpenedModel:
    """Open a checkpoint on a device.

    Args:
        path: A path or a hub id.
        options: What is asked.
        progress: Told how a download goes; None leaves the hub's own bars on stderr.

    Raises:
        CheckpointError: If the checkpoint is malformed.
        UnsupportedError: If no family reads it or the device cannot run it.
        DeviceError: If the device is absent.
        RequestError: If an option is out of range.
    """
    from poot_executor import open_engine

    start = perf_counter()
    settings = Settings.from_environment()
    with ExitStack() as resources:
        checkpoint, model = read_model(path, progress)
        resources.callback(checkpoint.close)
        engine = open_engine(
            model.trace,
            model.cache_key,
            checkpoint.weights,
            model.vocab_size,
            engine_options(model, options, settings),
            settings,
        )
        resources.callback(engine.close)
        tokenizer = read_tokenizer(checkpoint)
        return OpenedModel(
            engine=engine,
            tokenizer=tokenizer,
            eos_token_ids=end_token_ids(checkpoint, model, tokenizer),
            sampling_defaults=sampling_defaults(checkpoint.generation_config),
            resources=resources.pop_all(),
            load_s=perf_counter() - start,
        )


def read_model(
    name: str | Path, progress: DownloadProgress | None = None
) -> tuple[Checkpoint, Model]:
    """Return a checkpoint, to be closed by the caller, and its model, without any engine."""
    from poot_load import open_checkpoint, resolve_model
    from poot_models import load_family

    checkpoint = open_checkpoint(resolve_model(name, progress))
    try:
        return checkpoint, load_family(checkpoint)
    except BaseException:
        checkpoint.close()
        raise


def _token_ids(found: object) -> list[int]:
    listed = cast("list[object]", found) if isinstance(found, list) else [found]
    ids = [each for each in listed if isinstance(each, int) and not isinstance(each, bool)]
    if len(ids) != len(listed):
        raise CheckpointError(
            f"generation_config.json: 'eos_token_id' is {found!r}; allowed: a token id or a list of "
            "them"
        )
    return ids


def end_token_ids(
    checkpoint: Checkpoint, model: Model, tokenizer: Tokenizer | None
) -> frozenset[int]:
    """Return the tokens that end an answer.

    generation_config.json goes before config.json; a GGUF's vocabulary marks further ones.

    Raises:
        CheckpointError: If generation_config.json names something else than token ids.
    """
    found = checkpoint.generation_config.get("eos_token_id")
    ids = set(model.eos_token_ids) if found is None else set(_token_ids(found))
    if tokenizer is not None and checkpoint.file_format == "gguf":
        ids |= set(tokenizer.end_ids)
    return frozenset(ids)


def engine_options(model: Model, options: OpenOptions, settings: Settings) -> EngineOptions:
    """Return the options of the engine: the context that was asked and a pool that holds it.

    Raises:
        RequestError: If an option is out of range.
    """
    from poot_executor import EngineOptions

    context = options.context
    if context is None:
        context = min(model.default_context, DEFAULT_CONTEXT)
    if not 1 <= context <= model.max_context:
        raise RequestError(
            f"context is {context}; this model takes 1 to {model.max_context} tokens",
            field="context",
        )
    threads = settings.threads if options.threads is None else options.threads
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise RequestError(
            f"threads is {threads}; it must be from 1 to {MOST_THREADS}", field="threads"
        )
    if options.precision not in {"auto", "f32"}:
        raise RequestError(
            f"precision is {options.precision!r}; it must be 'auto' or 'f32'", field="precision"
        )
    full = -(-context // BLOCK_SIZE)  # blocks of one full sequence
    pool_bytes = _pool_bytes() if options.kv_bytes is None else options.kv_bytes
    affordable = pool_bytes // max(1, BLOCK_SIZE * bytes_per_token(model.kv_layers))
    return EngineOptions(
        backend=settings.backend if options.backend == "auto" else options.backend,
        precision=options.precision,
        threads=threads,
        context_tokens=context,
        max_sequences=options.max_sequences,
        max_step_tokens=max(options.max_step_tokens, options.max_sequences),
        block_size=BLOCK_SIZE,
        num_blocks=max(full, min(full * options.max_sequences, affordable)),
    )


def _pool_bytes() -> int:
    """Return a power of two within a share of the free memory.

    A plan depends on the number of blocks, so a size that follows each change of the free memory would
    never be found in the cache again.
    """
    share = int(_POOL_SHARE * free_memory_bytes())
    return max(_LEAST_POOL_BYTES, 1 << max(0, share.bit_length() - 1))


def bytes_per_token(layers: tuple[KVLayer, ...], itemsize: int = 2) -> int:
    """Return the bytes of one token's keys and values in a pool of f16."""
    return itemsize * sum(
        layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layers
    )
