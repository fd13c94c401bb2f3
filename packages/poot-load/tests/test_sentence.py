"""What sentence-transformers saves beside a model: read, or refused where poot would do otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from tokenizers import models, pre_tokenizers

from poot_core import CheckpointError, UnsupportedError
from poot_load import SentenceModules, open_checkpoint

KINDS = ["Transformer", "Pooling", "Normalize"]


def write(folder: Path, kinds: list[str], pooling: dict, **files: dict) -> Path:
    safetensors.numpy.save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    paths = {"Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [
        {"idx": i, "name": str(i), "path": paths.get(kind, ""),
         "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def read(folder: Path) -> SentenceModules | None:
    with open_checkpoint(folder) as checkpoint:
        return checkpoint.sentence


MEAN = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}


def test_modules_limits_and_prompts(tmp_path) -> None:
    found = read(
        write(
            tmp_path, KINDS, {**MEAN, "pooling_mode_cls_token": False},
            sentence_bert_config={"max_seq_length": 256, "do_lower_case": False},
            config_sentence_transformers={
                "prompts": {"query": "query: "}, "default_prompt_name": "query",
            },
        )
    )  # fmt: skip
    assert found == SentenceModules(
        pooling="mean", normalize=True, width=8, max_tokens=256, prompts={"query": "query: "},
        default_prompt="query",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_kinds_of_pooling(tmp_path, pooling, kind) -> None:
    found = read(write(tmp_path, KINDS[:2], pooling))
    assert found is not None
    assert (found.pooling, found.normalize, found.max_tokens) == (kind, False, None)


def test_a_directory_without_modules_says_nothing(tmp_path) -> None:
    folder = write(tmp_path, KINDS, MEAN)
    (folder / "modules.json").unlink()
    assert read(folder) is None


@pytest.mark.parametrize(
    ("kinds", "pooling", "files", "what"),
    [
        (["Transformer", "Pooling", "Dense"], MEAN, {}, "Dense"),
        (["Pooling"], MEAN, {}, "Pooling"),
        (KINDS, {"pooling_mode_max_tokens": True}, {}, "max_tokens"),
        (KINDS, {**MEAN, "pooling_mode_cls_token": True}, {}, "mean_tokens and"),
        (KINDS, {}, {}, "nothing"),
        (KINDS, {**MEAN, "include_prompt": False}, {}, "include_prompt"),
        (KINDS, MEAN, {"sentence_bert_config": {"do_lower_case": True}}, "do_lower_case"),
    ],
)
def test_what_poot_has_not_is_refused(tmp_path, kinds, pooling, files, what) -> None:
    with pytest.raises(UnsupportedError, match=what):
        read(write(tmp_path, kinds, pooling, **files))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("modules.json", "{}", "list"),
        ("modules.json", "[1]", "object with 'type'"),
        ("modules.json", '[{"type": "a.Transformer", "path": "../x"}]', "within"),
        ("modules.json", "[", "JSON list"),
        ("modules.json", "[" * 100_000, "nested"),
        ("1_Pooling/config.json", '{"word_embedding_dimension": "8"}', "integer"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "positive"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "texts by name"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "a"}', "name of a prompt"),
    ],
)
def test_malformed_files_are_refused(tmp_path, name, content, what) -> None:
    folder = write(tmp_path, KINDS, MEAN)
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=what):
        read(folder)


def test_the_pooling_has_to_be_there(tmp_path) -> None:
    folder = write(tmp_path, KINDS, MEAN)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="absent"):
        read(folder)


def test_a_tokenizer_file_neither_cuts_nor_pads(tmp_path) -> None:
    """Files of encoders ask for both, which would change what is read in silence."""
    folder = write(tmp_path, KINDS, MEAN)
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tokenizer_data is not None
        assert checkpoint.tokenizer_data.encode("a") == [0]
        assert checkpoint.tokenizer_data.encode("a a a a a b") == [0, 0, 0, 0, 0, 1]
