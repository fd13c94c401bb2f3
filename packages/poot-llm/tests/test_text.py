import functools
import itertools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_tokenizers import TEXT, byte_level, sentencepiece
from tokenizers import decoders, models

from poot_llm import SamplingParams
from poot_llm._detokenizer import BytesDetokenizer, WindowDetokenizer
from poot_llm._token_bytes import TokenBytes
from poot_llm.text import StopMatcher, TextStream, decode_all

BYTE_LEVEL = functools.cache(byte_level)
KINDS = {
    "bytes": BYTE_LEVEL,
    "pieces": functools.cache(sentencepiece),
    "pieces-kept-space": functools.cache(lambda: sentencepiece(strips=False)),
}


def make(backend, *, skips_special=True, continues=False, window=False):
    if window:
        return WindowDetokenizer(backend, skips_special=skips_special)
    table = TokenBytes.of(backend)
    assert table is not None
    return BytesDetokenizer(table, skips_special=skips_special, continues=continues)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [False, True])
@given(text=st.text(max_size=40) | st.sampled_from([TEXT, " the the", "é is 🦊🦊", "the"]))
@settings(max_examples=60, deadline=None)
def test_a_stream_gives_the_text_that_was_encoded(kind, window, text) -> None:
    backend = KINDS[kind]()
    ids = backend.encode(text, add_special_tokens=False).ids
    parts, detokenizer = [], make(backend, window=window)
    for token_id in ids:
        parts.append(detokenizer.push(token_id))
        assert "\ufffd" not in parts[-1] or "\ufffd" in text
    parts.append(detokenizer.finish())
    # What the tokenizer's own decoder makes of valid text is the independent answer.
    assert "".join(parts) == backend.decode(ids)


class _Counting:
    """A tokenizer that notes how many tokens it was given to decode at once."""

    def __init__(self, backend) -> None:
        self._backend, self.lengths = backend, []

    def decode(self, ids, **options) -> str:
        self.lengths.append(len(ids))
        return self._backend.decode(ids, **options)

    def __getattr__(self, name: str):
        return getattr(self._backend, name)


def test_the_last_of_131072_tokens_costs_what_the_first_did() -> None:
    backend = BYTE_LEVEL()
    once = backend.encode(TEXT + " 🦊 é", add_special_tokens=False).ids
    ids = list(itertools.islice(itertools.cycle(once), 131_072))
    counting = _Counting(backend)
    assert decode_all(make(counting, window=True), ids) == backend.decode(ids)
    assert len(counting.lengths) <= 2 * len(ids) + 2
    assert max(counting.lengths) <= 32  # two windows: what was given out, and what follows
    stream = TextStream(make(backend), SamplingParams(stop=("never said",)))
    given = sum(len(stream.push([token_id])) for token_id in ids)
    # Nothing but a part of a stop string may be kept, or each token would cost more than the last.
    kept = stream.push([], "length")
    assert given + len(kept) == len(backend.decode(ids))
    assert len(kept) < len("never said")


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skips=st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_ids_give_their_bytes_read_as_utf8(kind, data, skips) -> None:
    backend = KINDS[kind]()
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() + 3), max_size=30))
    detokenizer = make(backend, skips_special=skips, continues=True)
    streamed = decode_all(detokenizer, ids)
    raw = b"".join(
        _bytes_of(backend, kind, token_id) for token_id in ids if not (skips and token_id < 3)
    )
    assert streamed == raw.decode("utf-8", "replace")
    if kind == "bytes":  # that decoder treats malformed bytes as we do
        assert streamed == backend.decode(ids, skip_special_tokens=skips)


def _bytes_of(backend, kind: str, token_id: int) -> bytes:
    """Spell a token by the rules of the formats, not by ours."""
    token = backend.id_to_token(token_id)
    if token is None:
        return b""
    if kind == "bytes":
        if token_id < 3:
            return token.encode()
        keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in keep]
        return bytes(ord(c) if ord(c) < 256 else rest[ord(c) - 256] for c in token)
    if 3 <= token_id < 259:
        return bytes([token_id - 3])
    return token.replace("▁", " ").encode()


def test_half_a_character_is_held_back_and_ends_as_one_replacement() -> None:
    backend = KINDS["pieces"]()
    fox = [backend.token_to_id(f"<0x{byte:02X}>") for byte in "🦊".encode()]
    detokenizer = make(backend)
    assert [detokenizer.push(token_id) for token_id in fox + fox[:3]] == [
        "", "", "", "🦊", "", "", "",
    ]  # fmt: skip
    assert detokenizer.finish() == "\ufffd"


def test_the_first_space_is_kept_when_a_text_goes_on() -> None:
    backend = KINDS["pieces"]()
    ids = [backend.token_to_id("▁P"), backend.token_to_id("a"), backend.token_to_id("▁the")]
    assert decode_all(make(backend), ids) == "Pa the"
    assert decode_all(make(backend, continues=True), ids) == " Pa the"


def test_metaspace_drops_the_mark_of_the_first_token() -> None:
    vocab = {"▁a": 0, "b": 1, "▁": 2}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="b"))
    backend.decoder = decoders.Metaspace()
    for ids in ([0, 1, 0], [2, 0, 1], [1, 2, 0]):
        assert decode_all(make(backend), ids) == backend.decode(ids)


def test_other_decoders_are_decoded_in_windows() -> None:
    vocab = {"play": 0, "##ing": 1, "is": 2, "fun": 3, "!": 4}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="!"))
    backend.decoder = decoders.WordPiece()
    assert TokenBytes.of(backend) is None
    ids = [0, 1, 2, 3, 4] * 20
    assert decode_all(make(backend, window=True), ids) == backend.decode(ids)


def _reference_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            return text[: end - max(map(len, hits))], True
    return text, False


@given(
    text=st.text("ab🦊", max_size=30),
    stops=st.lists(st.text("ab🦊", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
@settings(max_examples=300, deadline=None)
def test_stop_strings_cut_at_the_same_place_however_the_text_comes(text, stops, cuts) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    expected, stopped = _reference_stop(text, stops)
    matcher = StopMatcher(stops)
    given_out = ""
    for piece in pieces:
        given_out += matcher.push(piece)
        assert expected.startswith(given_out), "part of a stop string leaked"
    assert given_out + matcher.finish() == expected
    assert matcher.is_stopped == stopped


def test_only_a_possible_stop_is_held_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello\n") == "Hello"
    assert matcher.push("World") == "\nWorld"


def test_end_tokens_and_stop_strings_leave_no_text() -> None:
    backend = BYTE_LEVEL()
    ids = backend.encode("The capital", add_special_tokens=False).ids
    stream = TextStream(make(backend), SamplingParams(stop=(" cap",)))
    text = "".join(stream.push([token_id]) for token_id in ids)
    assert (text, stream.is_stopped) == ("The", True)
    end = backend.token_to_id("T")
    stream = TextStream(make(backend), SamplingParams(stop_token_ids=(end,)))
    assert stream.push(ids) + stream.push([end], "stop") == "The capital"


def test_stop_strings_wait_for_min_tokens() -> None:
    backend = BYTE_LEVEL()
    ids = [backend.token_to_id(c) for c in "abab"]
    stream = TextStream(make(backend), SamplingParams(stop=("a",), min_tokens=2))
    assert stream.push(ids) == "ab"
    assert stream.is_stopped
