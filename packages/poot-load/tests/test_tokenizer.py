"""Tokenizers rebuilt from vocabularies, against the tokenizers that the vocabularies came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poot_load_fakes import Gguf, llama
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from poot_core import CheckpointError
from poot_load import TokenizerData, open_checkpoint
from poot_load._pretokenizers import SCHEMES
from poot_load._tokenizer_cache import load_entry, store_entry

TEXT = (
    Path(__file__).parent / "test_families.py"
).read_text() * 2 + "naïve café 日本 🎉 don't I'll 12"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def trained(digits: bool) -> Tokenizer:
    """Return a byte-level BPE trained here, cut like gpt-2 or, with digits alone, like smollm."""
    tokenizer = Tokenizer(models.BPE())
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def with_vocabulary(tokenizer: Tokenizer, cut: str, **more: tuple[str, Any]) -> Gguf:
    state = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda kv: kv[1])]
    types = [1] * len(tokens)
    for token, entry in tokenizer.get_added_tokens_decoder().items():
        types[token] = 3 if entry.special else 4
    merges = [" ".join(pair) for pair in state["merges"]]
    file = llama(layers=1)
    keys: dict[str, tuple[str, Any]] = {
        "model": ("str", "gpt2"),
        "pre": ("str", cut),
        "tokens": ("arr", ("str", tokens)),
        "token_type": ("arr", ("i32", types)),
        "merges": ("arr", ("str", merges)),
        "bos_token_id": ("u32", 0),
        "eos_token_id": ("u32", 1),
        **more,
    }
    file.metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return file


def data_of(file: Gguf, tmp_path: Path) -> TokenizerData:
    data = open_checkpoint(file.write(tmp_path / "a.gguf")).tokenizer_data
    assert data is not None
    return data


texts = st.text(max_size=60) | st.lists(
    st.sampled_from([
        "<s>", "<|im_end|>", "<tool>", " ", "  ", "\n", "the", " test", "def", "1234", "don't", "é",
        "日本", "🎉", "e\u0301", "<", ">", "\t", "assert", "_", "\u2581", "<0x0A>", "x" * 30,
    ]),
    max_size=12,
).map("".join)  # fmt: skip
_CHECKED = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize(("pre", "digits"), [("gpt-2", False), ("smollm", True)])
def test_byte_level_is_rebuilt_exactly(tmp_path: Path, pre: str, digits: bool) -> None:
    original = trained(digits)
    data = data_of(with_vocabulary(original, pre), tmp_path)
    whole = data.tokenizer
    again = data_of(with_vocabulary(original, pre), tmp_path)  # encodes without the whole

    @_CHECKED
    @given(texts)
    def check(text: str) -> None:
        expected = original.encode(text).ids
        assert whole.encode(text).ids == expected
        assert again.encode(text) == expected
        assert again.decode(expected) == original.decode(expected)
        assert again.decode(expected, skip_special_tokens=False) == text

    check()
    assert data.vocab_size == original.get_vocab_size()
    assert data.special_ids == {0, 1, 2}
    assert (data.bos_id, data.eos_ids, data.add_bos) == (0, (1, 2), False)
    assert again.token_bytes(original.token_to_id("<tool>") or 0) == b"<tool>"
    assert again.token_text(0) == "<s>"
    with pytest.raises(IndexError, match="token id 99999 is not in"):
        again.token_bytes(99999)
    with pytest.raises(IndexError):
        again.token_text(-1)


def _sentencepiece() -> tuple[list[str], list[float], list[int]]:
    """Return a vocabulary in which every way to merge has its own score."""
    rng = np.random.default_rng(11)
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3] + [6] * 256
    words = TEXT.replace(" ", " \u2581").split()[:400]
    letters = sorted({letter for word in words for letter in word if letter.isascii()} | {"\u2581"})
    parts = {word[i:j] for word in words for i in range(len(word)) for j in range(i + 2, i + 6)}
    made = [*letters, *sorted(part for part in parts if len(part) > 1 and part.strip())]
    scores = [0.0] * len(pieces) + (-rng.permutation(len(made)).astype(float)).tolist()
    return pieces + made, scores, types + [1] * len(made)


def _merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Return what sentencepiece's rule gives: the best neighbours join until none can."""
    symbols = list(text)
    while True:
        pairs = [(scores.get(a + b), i) for i, (a, b) in enumerate(zip(symbols, symbols[1:]))]  # noqa: B905, RUF007
        known = [(score, -i) for score, i in pairs if score is not None]
        if not known:
            return symbols
        at = -max(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def test_phi3s_control_tokens_swallow_spaces(tmp_path: Path) -> None:
    pieces, scores, types = _sentencepiece()
    file = llama(layers=1)
    file.metadata = {k.replace("llama.", "phi3."): v for k, v in file.metadata.items()}
    file.metadata |= {
        "general.architecture": ("str", "phi3"),
        "tokenizer.ggml.model": ("str", "llama"),
        "tokenizer.ggml.tokens": ("arr", ("str", [*pieces, "<|end|>"])),
        "tokenizer.ggml.scores": ("arr", ("f32", [*scores, 0.0])),
        "tokenizer.ggml.token_type": ("arr", ("i32", [*types, 3])),
        "tokenizer.ggml.bos_token_id": ("u32", 1),
        "tokenizer.ggml.unknown_token_id": ("u32", 0),
    }
    data = data_of(file, tmp_path)
    end = len(pieces)
    assert data.eos_ids == (end,)
    for encode in (data.encode, lambda text: data.tokenizer.encode(text).ids):
        ids = encode("<|end|>  def")
        assert ids == encode("<|end|>def")
        assert ids[:2] == [1, end]
    assert data.encode("<s>  def") != data.encode("<s>def")


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_merges_by_score(tmp_path: Path, prefix: bool) -> None:
    pieces, scores, types = _sentencepiece()
    file = llama(layers=1)
    file.metadata |= {
        "tokenizer.ggml.model": ("str", "llama"),
        "tokenizer.ggml.tokens": ("arr", ("str", pieces)),
        "tokenizer.ggml.scores": ("arr", ("f32", scores)),
        "tokenizer.ggml.token_type": ("arr", ("i32", types)),
        "tokenizer.ggml.bos_token_id": ("u32", 1),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
        "tokenizer.ggml.unknown_token_id": ("u32", 0),
        "tokenizer.ggml.add_space_prefix": ("bool", prefix),
    }
    data, again = data_of(file, tmp_path), data_of(file, tmp_path)
    whole = data.tokenizer
    assert (data.add_bos, data.add_eos, data.bos_id) == (True, False, 1)
    ids = {piece: index for index, piece in enumerate(pieces)}
    normal = {p: s for p, s, kind in zip(pieces, scores, types, strict=True) if kind == 1}

    @_CHECKED
    @given(st.text(st.sampled_from("deftassr_ ()\u2581é日 "), min_size=1, max_size=40))
    def check(text: str) -> None:
        shown = ("\u2581" if prefix else "") + text.replace(" ", "\u2581")
        expected = [1]
        for symbol in _merge_by_score(shown, normal):
            known = [ids[symbol]] if symbol in normal else [3 + byte for byte in symbol.encode()]
            expected += known
        assert whole.encode(text).ids == expected
        assert again.encode(text) == expected
        assert again.encode(text, add_special_tokens=False) == expected[1:]
        assert again.decode(expected) == text.replace("\u2581", " ")

    check()
    assert again.encode("a<s>b")[:3].count(1) == 2
    assert again.decode([3 + 0xE6, 3 + 0x97, 3 + 0xA5], is_continuation=True) == "日"
    assert again.token_bytes(3 + 0xE6) == b"\xe6"


def test_a_tokenizer_outlives_its_checkpoint(tmp_path: Path) -> None:
    original = trained(digits=False)
    file = with_vocabulary(original, "gpt-2")
    with open_checkpoint(file.write(tmp_path / "a.gguf")) as checkpoint:
        data = checkpoint.tokenizer_data
    assert data is not None
    expected = original.encode("the test").ids
    assert data.encode("the test") == expected
    assert data.decode(expected) == "the test"
    assert data.tokenizer.encode("the test").ids == expected


def test_bos_and_eos_rules(tmp_path: Path) -> None:
    original = trained(digits=False)
    both = {"add_bos_token": ("bool", True), "add_eos_token": ("bool", True)}
    data = data_of(with_vocabulary(original, "gpt-2", **both), tmp_path)
    plain = original.encode("the test").ids
    assert data.encode("the test") == [0, *plain, 1]
    assert data.tokenizer.encode("the test").ids == [0, *plain, 1]
    assert data.encode("the test") == [0, *plain, 1]
    assert data.encode("the test", add_special_tokens=False) == plain
    none = {"bos_token_id": ("u32", 2**32 - 1), "add_bos_token": ("bool", True)}
    data = data_of(with_vocabulary(original, "gpt-2", **none), tmp_path)
    assert (data.bos_id, data.add_bos) == (None, False)


def test_the_cache_is_checked_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    original = trained(digits=False)
    file = with_vocabulary(original, "gpt-2")
    expected = data_of(file, tmp_path).tokenizer.encode("the test").ids
    (entry,) = (tmp_path / "cache" / "poot" / "tokenizers").iterdir()
    for damage in (b"", b"nothing", entry.read_bytes()[:-9], b"\0" * 99):
        entry.write_bytes(damage)
        assert data_of(file, tmp_path).tokenizer.encode("the test").ids == expected
        assert len(entry.read_bytes()) > 1000
    store_entry(entry.parent, entry.stem, b"not a tokenizer, but whole")
    assert load_entry(entry.parent, entry.stem) == b"not a tokenizer, but whole"
    assert data_of(file, tmp_path).tokenizer.encode("the test").ids == expected
    monkeypatch.setenv("POOT_KERNEL_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert data_of(file, tmp_path).tokenizer.encode("the test").ids == expected
    assert not (tmp_path / "other").exists()


def test_the_cache_keeps_few_entries_and_survives_a_bad_disk(tmp_path: Path) -> None:
    for index in range(30):
        store_entry(tmp_path, f"k{index}", b"x")
    assert len(list(tmp_path.iterdir())) == 16
    (tmp_path / "file").write_bytes(b"")
    store_entry(tmp_path / "file" / "below", "k", b"x")
    assert load_entry(tmp_path / "file" / "below", "k") is None
    assert load_entry(None, "k") is None


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"pre": ("str", "klingon")}, "'klingon'; allowed: bloom"),
        ({"model": ("str", "rwkv")}, "'rwkv'; allowed: 'llama'"),
        ({"tokens": ("arr", ("i32", [1]))}, "an array of strings"),
        ({"merges": ("str", "a b")}, "an array of strings"),
        ({"token_type": ("arr", ("i32", [1]))}, "numbers, one a token"),
        ({"bos_token_id": ("u32", 10**6)}, r"bos_token_id' is 1000000; allowed: 0\.\."),
        ({"add_bos_token": ("u32", 1)}, "a bool"),
        ({"remove_extra_whitespaces": ("bool", True)}, "squeeze"),
        ({"model": ("str", "llama")}, "finite numbers"),
    ],
)
def test_bad_vocabularies_are_refused(
    tmp_path: Path, changes: dict[str, tuple[str, Any]], pattern: str
) -> None:
    file = with_vocabulary(trained(digits=False), "gpt-2", **changes)
    with pytest.raises(CheckpointError, match=pattern):
        data_of(file, tmp_path)


def test_repeated_pieces_are_refused(tmp_path: Path) -> None:
    tokens = ("arr", ("str", ["a", "b", "a"]))
    kinds = ("arr", ("i32", [1, 1, 1]))
    file = with_vocabulary(trained(digits=False), "gpt-2", tokens=tokens, token_type=kinds)
    with pytest.raises(CheckpointError, match="'a' twice"):
        data_of(file, tmp_path).encode("a")


SAMPLE = "It's 2024-12345, and I'LL\tsee   \n\n  naïve Ünïcode? 日本語 “q”…。foo/bar\r\n x==y"


@pytest.mark.parametrize("name", SCHEMES)
def test_every_cutting_rule_compiles_and_loses_nothing(name: str) -> None:
    words = [SAMPLE]
    for pattern in SCHEMES[name].patterns:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        words = [part for word in words for part, _ in split.pre_tokenize_str(word)]
    assert "".join(words) == SAMPLE
    assert len(words) > 10


# Cut by hand from the published patterns.
CUTS = {
    "gpt-2": ["It", "'s", " 2024", "-", "12345", ",", " ok", "\t", "see", "  ", " x"],
    "smollm": ["It", "'s", " ", *"2024", "-", *"12345", ",", " ok", "\t", "see", "  ", " x"],
    "llama-bpe": [
        "It", "'s", " ", "202", "4", "-", "123", "45", ",", " ok", "\tsee", "  ", " x",
    ],
    "qwen2": ["It", "'s", " ", *"2024", "-", *"12345", ",", " ok", "\tsee", "  ", " x"],
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name: str) -> None:
    words = ["It's 2024-12345, ok\tsee   x"]
    for pattern in SCHEMES[name].patterns:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        words = [part for word in words for part, _ in split.pre_tokenize_str(word)]
    assert words == CUTS[name]


def directory(path: Path, tokenizer: Tokenizer | None, settings: object | None) -> Path:
    from poot_load_fakes import safetensors

    path.mkdir()
    data = safetensors({"a": ("F32", (1,), b"abcd")})
    (path / "model.safetensors").write_bytes(data)
    (path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 1}')
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    if tokenizer is not None:
        tokenizer.save(str(path / "tokenizer.json"))
    if settings is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_tokenizer_json(tmp_path: Path) -> None:
    original = trained(digits=False)
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ x }}"}
    checkpoint = open_checkpoint(directory(tmp_path / "m", original, names))
    data = checkpoint.tokenizer_data
    assert data is not None
    assert checkpoint.chat_template == "{{ x }}"
    assert (data.bos_id, data.eos_ids, data.pad_id) == (0, (1, 2), None)
    assert (data.add_bos, data.add_eos) == (False, False)
    assert data.special_ids == {0, 1, 2}
    assert data.vocab_size == original.get_vocab_size()
    text = "don't café<|im_end|> 日"
    ids = original.encode(text).ids
    assert data.encode(text) == ids
    assert data.decode(ids) == original.decode(ids)
    assert data.decode(ids, skip_special_tokens=False, is_continuation=True) == text
    assert b"".join(map(data.token_bytes, ids)) == text.encode()
    with pytest.raises(IndexError):
        data.token_bytes(10**6)
    with pytest.raises(IndexError):
        data.token_bytes(-1)


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]},
         "d"),
        ({}, None),
    ],
)  # fmt: skip
def test_chat_templates(tmp_path: Path, settings_: object, expected: str | None) -> None:
    path = directory(tmp_path / "m", None, settings_)
    checkpoint = open_checkpoint(path)
    assert checkpoint.chat_template == expected
    assert checkpoint.tokenizer_data is None
    (path / "chat_template.jinja").write_text("own file")
    assert open_checkpoint(path).chat_template == "own file"


def test_bad_tokenizer_files(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", None, {"chat_template": 3})
    with pytest.raises(CheckpointError, match="'chat_template' is 3"):
        open_checkpoint(path)
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="a JSON object"):
        open_checkpoint(path)
    (path / "tokenizer_config.json").unlink()
    (path / "tokenizer.json").write_text("{}")
    data = open_checkpoint(path).tokenizer_data
    assert data is not None
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: content is"):
        data.encode("x")
