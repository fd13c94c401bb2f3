"""From parsed GGUF files to a checkpoint's parts: shards, translated names, translated config."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from poot_load._gguf import GgufFile, GgufTensor, read_gguf
from poot_load._gguf_families import FAMILIES, Family
from poot_load._gguf_metadata import Metadata
from poot_load._gguf_names import translate
from poot_load._gguf_rope import ROPE_TENSORS
from poot_load._refusal import refusal
from poot_load._store import StoredTensor, TensorInfo

__all__ = ["config_of", "family_of", "merge", "read_shards", "stored_tensors"]

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<index>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf$")
_MAX_SHARDS = 1024
# Names of token ids in the file, and in Hugging Face's configurations.
_TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}


def read_shards(path: Path) -> list[GgufFile]:
    """Return the parsed file, or all shards of the split file that it belongs to, in order.

    Raises:
        CheckpointError: If a file is malformed or a shard is missing or is not what its name says.
    """
    match = _SHARD.match(path.name)
    if match is None:
        gguf = read_gguf(path)
        parts = _split(gguf).scalar("count")
        if parts not in {None, 0, 1}:
            gguf.file.close()
            allowed = "a name such as model-00001-of-00003.gguf for a split file"
            raise refusal(path, "'split.count'", parts, allowed)
        return [gguf]
    count = int(match["count"])
    if not 1 <= count <= _MAX_SHARDS:
        raise refusal(path, "number of shards", count, f"1..{_MAX_SHARDS}")
    shards: list[GgufFile] = []
    try:
        for index in range(count):
            name = f"{match['stem']}-{index + 1:05}-of-{match['count']}.gguf"
            shards.append(read_gguf(path.with_name(name)))
            _check_shard(shards[-1], index, count)
        _check_whole(shards)
    except BaseException:
        for shard in shards:
            shard.file.close()
        raise
    return shards


def _split(gguf: GgufFile) -> Metadata:
    return Metadata(gguf.file.path, gguf.metadata, "split.")


def _check_shard(gguf: GgufFile, index: int, count: int) -> None:
    for key, expected in (("no", index), ("count", count)):
        found = _split(gguf).scalar(key)
        if found != expected and not (count == 1 and found is None):
            raise refusal(
                gguf.file.path, f"'split.{key}'", repr(found), f"{expected}, as its name says"
            )


def _check_whole(shards: list[GgufFile]) -> None:
    found = sum(len(shard.tensors) for shard in shards)
    total = _split(shards[0]).scalar("tensors.count")
    if total is not None and total != found:
        path = shards[0].file.path
        raise refusal(path, "'split.tensors.count'", total, f"{found}, as many as the shards hold")


def family_of(first: GgufFile) -> tuple[str, Family]:
    """Return the architecture's name and what poot knows of it.

    Raises:
        CheckpointError: If the file names none, or one that poot does not know.
    """
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        allowed = "one of " + ", ".join(sorted(FAMILIES))
        raise refusal(first.file.path, "'general.architecture'", repr(architecture), allowed)
    return architecture, FAMILIES[architecture]


def merge(shards: list[GgufFile]) -> GgufFile:
    """Return the first shard's header with the tensors of all shards.

    Raises:
        CheckpointError: If a name stands in two shards.
    """
    tensors: dict[str, GgufTensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise refusal(shard.file.path, "tensor name", repr(name), "names that differ")
            tensors[name] = tensor
    return replace(shards[0], tensors=tensors)


def config_of(gguf: GgufFile) -> dict[str, Any]:
    """Return the configuration under Hugging Face's keys.

    Raises:
        CheckpointError: If the architecture is unknown, a key is missing, of the wrong type or not
            known to poot.
    """
    architecture, family = family_of(gguf)
    path = gguf.file.path
    meta = Metadata(path, gguf.metadata, architecture + ".")
    config: dict[str, Any] = {"model_type": family.model_type}
    config |= family.config(gguf, meta)
    if (embedding := gguf.tensors.get("token_embd.weight")) is None or len(embedding.shape) != 2:
        raise refusal(path, "tensors", "no embedding", "a matrix 'token_embd.weight'")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in gguf.tensors
    meta.integer("vocab_size", 0)
    meta.expect("tensor_data_layout", "reference", "Meta AI original pth")
    meta.expect("attention.causal", True)
    meta.refuse_leftovers()
    tokens = Metadata(path, gguf.metadata, "tokenizer.ggml.")
    for kind, name in _TOKEN_IDS.items():
        # Converters write 2^32 - 1 where a model has no such token.
        if tokens.scalar(f"{kind}_token_id") not in {None, 0xFFFFFFFF}:
            config[f"{name}_token_id"] = tokens.integer(f"{kind}_token_id")
    return config


def stored_tensors(gguf: GgufFile) -> Iterator[StoredTensor]:
    """Yield every tensor under its Hugging Face name.

    Raises:
        CheckpointError: If a name is none of the family's.
    """
    architecture, family = family_of(gguf)
    meta = Metadata(gguf.file.path, gguf.metadata, architecture + ".")
    num_layers = meta.size("block_count")
    for tensor in gguf.tensors.values():
        if tensor.name not in ROPE_TENSORS:
            path = tensor.file.path
            name = translate(path, tensor.name, family.names, num_layers)
            info = TensorInfo(name, tensor.shape, tensor.dtype, tensor.num_bytes, path)
            yield StoredTensor(info, tensor.file, tensor.offset)
