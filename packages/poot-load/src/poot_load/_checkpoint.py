"""A checkpoint on disk, opened: configuration, weights, tokenizer data, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from poot_load import _gguf_checkpoint as gguf_parts
from poot_load._directory import TokenizerFiles, tokenizer_files
from poot_load._gguf import GgufFile
from poot_load._json import read_object
from poot_load._refusal import refusal
from poot_load._safetensors import read_directory, read_safetensors
from poot_load._sentence import SentenceModules, sentence_modules
from poot_load._store import WeightStore
from poot_load._tokenizer import TokenizerData, load_tokenizer

__all__ = ["Checkpoint", "FileFormat", "open_checkpoint"]

FileFormat = Literal["gguf", "safetensors"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds; a context manager that closes the weights.

    Attributes:
        path: The file or directory.
        file_format: ``gguf`` or ``safetensors``.
        architecture: ``model_type`` of config.json, or ``general.architecture`` of a GGUF.
        config: Under Hugging Face's config.json keys for both formats; ``model_type`` is always
            Hugging Face's. A GGUF adds keys for weights that its converter arranged differently:
            see ``_gguf_families``.
        weights: Tensors under Hugging Face's names.
        generation_config: Of generation_config.json; empty if there is none.
        chat_template: The default template, or None.
        tokenizer_source: What :attr:`tokenizer_data` is made from, or None.
        name: Name for people.
    """

    path: Path
    file_format: FileFormat
    architecture: str
    config: dict[str, Any]
    weights: WeightStore
    generation_config: dict[str, Any] = field(default_factory=dict[str, Any])
    chat_template: str | None = None
    tokenizer_source: GgufFile | TokenizerFiles | None = None
    name: str

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def tokenizer_data(self) -> TokenizerData | None:
        """The tokenizer, or None if the checkpoint has none: then it is ids in, ids out.

        Raises:
            CheckpointError: If the data is malformed or of a kind that poot does not know.
        """
        return load_tokenizer(self)

    @cached_property
    def sentence(self) -> SentenceModules | None:
        """How token states become one vector, where sentence-transformers saved it.

        Raises:
            CheckpointError: If the files are malformed.
            UnsupportedError: If they name a module or a pooling that poot has not.
        """
        if self.file_format == "gguf":
            return None
        return sentence_modules(self.path if self.path.is_dir() else self.path.parent)

    def close(self) -> None:
        """Close the weights; views that exist stay valid."""
        self.weights.close()


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a GGUF file (or a shard of a split one), a safetensors file or a directory.

    Only headers are read; tensors are mapped. A directory that holds no safetensors but exactly one
    GGUF (or one split GGUF) stands for that.

    Raises:
        CheckpointError: If a file is absent, malformed, truncated, or of an architecture that poot
            does not know.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_directory(path)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if path.suffix == ".safetensors":
        return _open_safetensors(path.parent, path)
    if not path.exists():
        raise refusal(path, "path", "absent", "an existing file or directory")
    raise refusal(path, "file name", repr(path.name), "*.gguf, *.safetensors or a directory")


def _open_directory(path: Path) -> Checkpoint:
    if not any(path.glob("*.safetensors")):
        found = sorted(path.glob("*.gguf"))
        first = [file for file in found if "-of-" not in file.name or "-00001-of-" in file.name]
        if len(first) == 1:
            return _open_gguf(first[0])
        if first:
            names = ", ".join(file.name for file in first[:8])
            raise refusal(path, "directory", f"several models: {names}", "one; name the file")
    return _open_safetensors(path, None)


def _open_safetensors(directory: Path, file: Path | None) -> Checkpoint:
    config = read_object(directory / "config.json")
    if config is None:
        raise refusal(directory / "config.json", "file", "absent", "a model's configuration")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise refusal(directory / "config.json", "'model_type'", repr(model_type), "a string")
    files = tokenizer_files(directory)
    tensors = read_safetensors(file) if file else read_directory(directory)
    return Checkpoint(
        path=file or directory,
        file_format="safetensors",
        architecture=model_type,
        config=config,
        weights=WeightStore(tensors),
        generation_config=read_object(directory / "generation_config.json") or {},
        chat_template=files.chat_template if files else None,
        tokenizer_source=files,
        name=directory.resolve().name,
    )


def _open_gguf(path: Path) -> Checkpoint:
    shards = gguf_parts.read_shards(path)
    try:
        merged = gguf_parts.merge(shards)
        architecture, _ = gguf_parts.family_of(merged)
        config = gguf_parts.config_of(merged)
        weights = WeightStore(gguf_parts.stored_tensors(merged))
    except BaseException:
        for shard in shards:
            shard.file.close()
        raise
    template = merged.metadata.get("tokenizer.chat_template")
    name = merged.metadata.get("general.name")
    return Checkpoint(
        path=path,
        file_format="gguf",
        architecture=architecture,
        config=config,
        weights=weights,
        chat_template=template if isinstance(template, str) else None,
        tokenizer_source=merged if "tokenizer.ggml.model" in merged.metadata else None,
        name=name if isinstance(name, str) else path.stem,
    )
