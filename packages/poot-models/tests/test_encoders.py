"""Encoders through the oracle against transformers 5.24 in f32; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import Tensors, Tiny

from poot_core import CheckpointError, UnsupportedError, f32
from poot_eval import OracleProgram
from poot_graph_ir import TraceOptions
from poot_load import open_checkpoint
from poot_models import EncoderModel, Pooling, is_encoder, load_encoder, load_family

DATA = Path(__file__).parent / "encoder_data"
BLOCK, BLOCKS, WIDTH = 4, 24, 8
CASES = [
    ("bert", Pooling("mean", True), "mean_pooled_l2"),
    ("bert", Pooling("cls", True), "cls_l2"),
    ("modernbert", Pooling("mean", True), "mean_pooled_l2"),
    ("modernbert", Pooling("cls", True), "cls_l2"),
    ("bert-rerank", None, "logits"),
    ("xlm-roberta-rerank", None, "logits"),
]


def read_expected(name: str) -> tuple[list[list[int]], dict]:
    """Return the texts' ids without padding, and what transformers made of them."""
    expected = json.loads((DATA / name / "expected.json").read_text())
    rows = zip(expected["input_ids"], expected["attention_mask"], strict=True)
    return [[i for i, kept in zip(ids, mask, strict=True) if kept] for ids, mask in rows], expected


def run(model: EncoderModel, raw, texts: list[list[int]], types=None) -> np.ndarray:
    """Return one row a text, in one ragged step over blocks in scrambled order."""
    options = TraceOptions(
        kv_dtype=f32, block_size=BLOCK, num_blocks=BLOCKS, max_blocks_per_row=WIDTH
    )
    program = OracleProgram(model.trace(options), raw, check=True)
    blocks = iter(np.random.default_rng(5).permutation(BLOCKS))
    tables = np.zeros((len(texts), WIDTH), np.int32)
    slots = []
    for row, text in enumerate(texts):
        used = -(-len(text) // BLOCK)
        tables[row, :used] = [next(blocks) for _ in range(used)]
        slots += [tables[row, p // BLOCK] * BLOCK + p % BLOCK for p in range(len(text))]
    lengths = [len(text) for text in texts]
    wanted = np.cumsum(lengths) - (1 if model.takes_last else lengths)
    slots_of_step = {
        "token_ids": np.concatenate(texts),
        "positions": np.concatenate([np.arange(n) for n in lengths]),
        "rows": np.repeat(np.arange(len(texts)), lengths),
        "sequence_lengths": lengths,
        "block_tables": tables,
        "slot_mapping": slots,
        "logit_positions": wanted,
    }
    if model.num_types > 1 or model.family != "modernbert":
        given = np.zeros(sum(lengths)) if types is None else np.concatenate(types)
        slots_of_step["token_types"] = given
    found = program.step({k: np.asarray(v, np.int32) for k, v in slots_of_step.items()})
    (values,) = found.values()
    return values


@pytest.mark.parametrize(("name", "pooling", "key"), CASES)
def test_a_ragged_step_gives_what_transformers_gives(name, pooling, key) -> None:
    texts, expected = read_expected(name)
    with open_checkpoint(DATA / name) as checkpoint:
        model = load_encoder(checkpoint, pooling)
        found = run(model, checkpoint.weights.raw, texts)
    # f32 in another order over three layers: a few units in the last place of about 0.3.
    np.testing.assert_allclose(found, expected[key], atol=1e-6, rtol=0)
    assert model.output_size == found.shape[1]


def test_segments_and_the_pooling_of_last_tokens_count() -> None:
    texts, expected = read_expected("bert")
    with open_checkpoint(DATA / "bert") as checkpoint:
        raw = checkpoint.weights.raw
        mean = load_encoder(checkpoint, Pooling("mean", False))
        plain = run(mean, raw, texts)
        typed = run(mean, raw, texts, [[0] * 4 + [1] * 17, [0] * 13])
        assert np.abs(typed[0] - plain[0]).max() > 1e-3
        np.testing.assert_array_equal(typed[1], plain[1])
        unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, expected["mean_pooled_l2"], atol=1e-6, rtol=0)
        # The mean of one token is its state, which is also the first and the last one.
        rows = [
            run(load_encoder(checkpoint, Pooling(kind, False)), raw, [[7]])
            for kind in ("mean", "cls", "last")
        ]
        np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)
        np.testing.assert_array_equal(rows[1], rows[2])
        last = load_encoder(checkpoint, Pooling("last", True))
        assert np.abs(run(last, raw, texts) - expected["cls_l2"]).max() > 1e-2


def tiny(name: str) -> Tiny:
    """Return a checkpoint in memory, which tests change."""
    with open_checkpoint(DATA / name) as checkpoint:
        arrays = {n: checkpoint.weights.array(n).copy() for n in checkpoint.weights.names()}
        return _Encoder(checkpoint.config, Tensors(arrays))


class _Encoder(Tiny):
    path = Path("tiny")
    sentence = None


MEAN = Pooling("mean", True)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"attention_probs_sharpened": 2}, "attention_probs_sharpened"),
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
    ],
)
def test_what_changes_the_meaning_is_refused(change, field) -> None:
    with pytest.raises(CheckpointError, match=field):
        load_encoder(tiny("bert").with_config(**change), MEAN)


def test_tensors_are_all_there_and_all_known() -> None:
    checkpoint = tiny("bert")
    arrays = dict(checkpoint.weights.arrays)
    del arrays["encoder.layer.1.output.dense.bias"]
    with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\.bias"):
        load_encoder(_Encoder(checkpoint.config, Tensors(arrays)), MEAN)
    arrays = {**checkpoint.weights.arrays, "embeddings.extra.weight": np.ones(3, np.float32)}
    with pytest.raises(CheckpointError, match=r"embeddings\.extra"):
        load_encoder(_Encoder(checkpoint.config, Tensors(arrays)), MEAN)
    # Other heads and buffers say nothing of the body.
    ignored = {"cls.predictions.bias": np.ones(3), "embeddings.position_ids": np.arange(4)[None]}
    arrays = {**checkpoint.weights.arrays, **ignored}
    assert load_encoder(_Encoder(checkpoint.config, Tensors(arrays)), MEAN).vocab_size == 300


def test_pooling_has_to_be_known_and_heads_have_none() -> None:
    with pytest.raises(UnsupportedError, match=r"modules\.json"):
        load_encoder(tiny("bert"))
    with pytest.raises(UnsupportedError, match="nothing to pool"):
        load_encoder(tiny("bert-rerank"), MEAN)
    with pytest.raises(UnsupportedError, match="no scoring head"):
        load_encoder(
            tiny("modernbert").with_config(architectures=["ModernBertForSequenceClassification"])
        )


def test_encoders_and_decoders_are_told_apart() -> None:
    assert is_encoder("xlm-roberta")
    assert not is_encoder("llama")
    with pytest.raises(UnsupportedError, match="encoder"):
        load_family(tiny("bert"))
    with pytest.raises(UnsupportedError, match="no encoder for architecture 'llama'"):
        load_encoder(tiny("bert").with_config(model_type="llama"), MEAN)


def test_facts() -> None:
    roberta = load_encoder(tiny("xlm-roberta-rerank"))
    assert (roberta.labels, roberta.max_tokens, roberta.num_types) == (("LABEL_0",), 126, 1)
    assert roberta.output_size == 1
    bert = load_encoder(tiny("bert"), MEAN)
    assert (bert.output_size, bert.max_tokens, bert.labels) == (64, 128, ())
    assert [layer.key_dim for layer in bert.kv_layers] == [16, 16]
    assert len({bert.cache_key, load_encoder(tiny("bert"), Pooling("cls", True)).cache_key}) == 2
