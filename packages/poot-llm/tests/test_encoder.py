"""Encoders through the Python API: transformers' numbers, the same bits in any company, refusals."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from poot_core import DeviceError, RequestError, UnsupportedError
from poot_llm import (
    LLM,
    ContextLengthError,
    EncodedText,
    Encoder,
    EncoderDriver,
    EncoderOptions,
    open_encoder,
    open_encoder_text,
    shorten,
)
from poot_test_util import require_model

DATA = Path(__file__).parent / "data" / "encoders"
CLOSE = {"atol": 2e-6, "rtol": 0}  # f32 in another order over three layers, of about 0.1 to 1
WORDS = [f"w{number}" for number in range(250)]


def read_expected(name: str) -> tuple[list[list[int]], dict]:
    expected = json.loads((DATA / name / "expected.json").read_text())
    rows = zip(expected["input_ids"], expected["attention_mask"], strict=True)
    return [[i for i, kept in zip(ids, mask, strict=True) if kept] for ids, mask in rows], expected


def library_tokenizer() -> tokenizers.Tokenizer:
    """One token a word; [CLS] a [SEP] and [CLS] a [SEP] b [SEP], whose second text is of segment 1."""
    vocab = {"[CLS]": 297, "[SEP]": 298, "[UNK]": 299} | {w: i for i, w in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 297), ("[SEP]", 298)],
    )
    return tokenizer


def with_tokenizer(folder: Path, name: str, **config) -> Path:
    shutil.copytree(DATA / name, folder / name)
    library_tokenizer().save(str(folder / name / "tokenizer.json"))
    path = folder / name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder / name


def text(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, count))


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_embeddings_are_those_of_transformers(name, backend) -> None:
    texts, expected = read_expected(name)
    for pooling, key in (("mean", "mean_pooled_l2"), ("cls", "cls_l2")):
        with Encoder(DATA / name, backend=backend, precision="f32", pooling=pooling) as encoder:
            found = encoder.embed(texts)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected[key], **CLOSE)
            alone = encoder.embed(texts[1])[0]
            if backend == "oracle":  # its products are BLAS's, which sums as it likes
                np.testing.assert_allclose(alone, found[1], **CLOSE)
            else:
                np.testing.assert_array_equal(alone, found[1])


@pytest.mark.parametrize("backend", ["oracle", "cpu"])
@pytest.mark.parametrize("name", ["bert-rerank", "xlm-roberta-rerank"])
def test_scores_are_those_of_transformers(name, backend) -> None:
    texts, expected = read_expected(name)
    opened = open_encoder(DATA / name, EncoderOptions(backend=backend, precision="f32"))
    with opened.resources:
        driver = EncoderDriver(opened.engine, takes_last=opened.takes_last)
        driver.add([EncodedText(np.array(t, np.int32), np.zeros(len(t), np.int32)) for t in texts])
        (result,) = driver.step()
        np.testing.assert_allclose(result.rows, expected["logits"], **CLOSE)
        assert result.error is None


@pytest.mark.parametrize("precision", ["f32", "auto"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_company_steps_and_order_change_no_bit(name, precision) -> None:
    """Texts of 1 to 128 tokens in steps of one, a few and many; a window in two layers of one model."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 300, n).tolist() for n in (1, 2, 7, 40, 128, 1, 33, 90, 3, 64, 128, 5)]
    options = {"backend": "cpu", "precision": precision, "pooling": "mean"}
    with Encoder(DATA / name, max_step_tokens=512, **options) as encoder:
        together = encoder.embed(texts)
        alone = np.concatenate([encoder.embed(each) for each in texts])
        np.testing.assert_array_equal(alone, together)
        np.testing.assert_array_equal(encoder.embed(texts[::-1])[::-1], together)
        with ThreadPoolExecutor(3) as pool:
            for found in pool.map(encoder.embed, [texts] * 3):
                np.testing.assert_array_equal(found, together)
    with Encoder(DATA / name, max_sequences=3, max_step_tokens=130, **options) as encoder:
        np.testing.assert_array_equal(encoder.embed(texts), together)


def test_requests_share_steps_and_can_be_cancelled() -> None:
    opened = open_encoder(
        DATA / "bert",
        EncoderOptions(backend="oracle", precision="f32", pooling="cls", max_sequences=3),
    )
    rng = np.random.default_rng(2)
    texts = [
        EncodedText(rng.integers(0, 300, n).astype(np.int32), np.zeros(n, np.int32))
        for n in (4, 9, 2, 6, 8, 1, 5)
    ]
    with opened.resources:
        driver = EncoderDriver(opened.engine, takes_last=opened.takes_last)
        first, second, third = driver.add(texts[:2]), driver.add(texts[2:5]), driver.add(texts[5:])
        assert (driver.stats.waiting, driver.stats.waiting_tokens) == (7, 35)
        assert [result.request_id for result in driver.step()] == [first]
        driver.cancel(second)
        assert driver.stats.waiting == 2
        (result,) = driver.step()
        assert (result.request_id, result.rows.shape) == (third, (2, 64))
        assert not driver.has_work
        assert (driver.stats.steps, driver.stats.rows, driver.stats.row_tokens) == (2, 2, 6)
        with pytest.raises(RequestError, match="1 to 128"):
            driver.add([EncodedText(np.zeros(129, np.int32), np.zeros(129, np.int32))])


def test_texts_pairs_and_cuts_are_those_of_the_tokenizers_library(tmp_path) -> None:
    side = open_encoder_text(with_tokenizer(tmp_path, "bert", max_position_embeddings=128),
                             pooling="mean", context=40)  # fmt: skip
    assert side is not None
    library, rng = library_tokenizer(), np.random.default_rng(3)
    for one, two, limit in rng.integers(1, 60, (60, 3)).tolist():
        first, second, limit = text(rng, one), text(rng, two), min(40, limit + 4)
        library.enable_truncation(limit)
        for wanted, found in (
            (library.encode(first), side.encode(first, truncate=limit)),
            (library.encode(first, second), side.encode_pair(first, second, truncate=limit)),
        ):
            assert found.ids.tolist() == wanted.ids
            assert found.types.tolist() == wanted.type_ids
    library.no_truncation()
    assert side.encode("w1 w2").ids.tolist() == [297, 1, 2, 298]
    assert side.encode([5, 6, 7], truncate=2).ids.tolist() == [5, 6]
    for work in (lambda: side.encode("w1 " * 39), lambda: side.encode_pair("w1 " * 30, "w2 " * 8),
                 lambda: side.encode([1] * 41)):  # fmt: skip
        with pytest.raises(ContextLengthError, match="41 tokens and this encoder takes 40"):
            work()
    wrong = {"one token": [], "outside": [300], "integers": ["a"], "Unicode": "\ud800"}
    for what, bad in wrong.items():
        with pytest.raises(RequestError, match=what):
            side.encode(bad)
    with pytest.raises(RequestError, match="at least 1"):
        side.encode("w1", truncate=0)


def test_scores_go_through_what_the_checkpoint_asks_for(tmp_path) -> None:
    rng = np.random.default_rng(4)
    query, documents = text(rng, 5), [text(rng, n) for n in (3, 30, 1)]
    with Encoder(
        with_tokenizer(tmp_path, "bert-rerank"), backend="cpu", precision="f32"
    ) as encoder:
        scores = encoder.score(query, documents)
        raw = encoder.score(query, documents, raw=True)
        np.testing.assert_allclose(scores, 1 / (1 + np.exp(-raw.astype(np.float64))), rtol=1e-6)
        assert scores.shape == (3,)
        np.testing.assert_array_equal(encoder.score(query, documents[1:2]), scores[1:2])
        assert encoder.score(query, []).shape == (0,)
        with pytest.raises(UnsupportedError, match="no embeddings"):
            encoder.embed("w1")
        with pytest.raises(ContextLengthError):
            encoder.score(query, ["w1 " * 200])
        assert encoder.score(query, ["w1 " * 200], truncate=128).shape == (1,)
    for config, name in (
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
        ({"id2label": {"0": "no", "1": "yes"}}, None),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, None),
    ):  # fmt: skip
        folder = with_tokenizer(
            tmp_path / str(len(list(tmp_path.iterdir()))), "bert-rerank", **config
        )
        if name is None:
            with pytest.raises(Exception, match=r"shape \[1, 64\]|Tanh"):
                open_encoder_text(folder)
        else:
            side = open_encoder_text(folder)
            assert side is not None
            assert side.activation == name


def test_prompts_dimensions_and_closing(tmp_path) -> None:
    folder = with_tokenizer(tmp_path, "bert")
    (folder / "1_Pooling").mkdir()
    kinds = enumerate(("Transformer", "Pooling", "Normalize"))
    files = {
        "modules.json": [
            {"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling" * (place == 1)}
            for place, kind in kinds
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 64, "pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 50},
        "config_sentence_transformers.json": {
            "prompts": {"document": "w9 w8 "}, "default_prompt_name": "document",
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    with Encoder(folder, backend="oracle", precision="f32") as encoder:
        assert (encoder.dimensions, encoder.labels, encoder.text.max_tokens) == (64, (), 50)
        whole = encoder.embed(["w1 w2", "w3"])
        np.testing.assert_array_equal(whole[0], encoder.embed([297, 9, 8, 1, 2, 298])[0])
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, rtol=1e-6)
        short = encoder.embed(["w1 w2", "w3"], dimensions=16)
        head = whole[:, :16].astype(np.float64)
        wanted = head / np.linalg.norm(head, axis=1, keepdims=True)
        np.testing.assert_allclose(short, wanted, rtol=1e-6)
        np.testing.assert_array_equal(short, shorten(whole, 16))
        assert encoder.embed([]).shape == (0, 64)
        for dimensions in (0, 65):
            with pytest.raises(RequestError, match="have 64"):
                encoder.embed("w1", dimensions=dimensions)
        with pytest.raises(UnsupportedError, match="scores no pairs"):
            encoder.score("w1", ["w2"])
    with pytest.raises(DeviceError, match="closed"):
        encoder.embed("w1")


def test_what_cannot_be_opened_says_why() -> None:
    with pytest.raises(UnsupportedError, match="pooling"):
        Encoder(DATA / "bert", backend="oracle")
    with pytest.raises(RequestError, match="1 to 128"):
        Encoder(DATA / "bert", backend="oracle", pooling="mean", context=129)
    with pytest.raises(UnsupportedError, match="encoder"):
        LLM(DATA / "bert", backend="oracle")
    with (
        Encoder(DATA / "bert", backend="oracle", pooling="mean") as encoder,
        pytest.raises(UnsupportedError, match="no tokenizer"),
    ):
        encoder.embed("text")
    assert open_encoder_text(DATA.parent / "llama") is None


@pytest.mark.checkpoint
@pytest.mark.parametrize(
    ("backend", "precision"), [("oracle", "f32"), ("cpu", "f32"), ("cpu", "auto")]
)
def test_minilm_is_that_of_transformers(backend, precision) -> None:
    """By text: its own tokenizer, pooling and normalisation."""
    expected = json.loads((DATA / "minilm-l6-v2.json").read_text())
    wanted, texts = np.array(expected["embeddings"]), expected["sentences"]
    with Encoder(require_model("minilm"), backend=backend, precision=precision) as encoder:
        for each, ids in zip(texts, expected["input_ids"], strict=True):
            assert encoder.text.encode(each).ids.tolist() == ids
        found = encoder.embed(texts)
        assert (found * wanted).sum(axis=1).min() > 0.99999
        if precision == "f32":
            np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
        if backend != "oracle":
            alone = np.concatenate([encoder.embed(each) for each in texts])
            np.testing.assert_array_equal(alone, found)
