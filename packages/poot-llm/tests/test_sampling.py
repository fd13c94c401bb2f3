import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_core import RequestError
from poot_kernelgen import SAMPLE_FIELDS, reference
from poot_llm import ContextLengthError, SamplingParams
from poot_llm._blocks import BlockManager
from poot_llm._filters import candidates, draw
from poot_llm._random import philox4x32, random_bits, uniform
from poot_llm._sampler import RowSampler, row_logprobs


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers published with the generator (Random123, kat_vectors)
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)  # fmt: skip
def test_philox_known_answers(counter, key, expected) -> None:
    assert " ".join(f"{word:08x}" for word in philox4x32(counter, key)) == expected


def test_uniform_is_uniform_and_keyed_by_all_three() -> None:
    numbers = np.array([uniform(3, 0, position) for position in range(4000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, 10, (0, 1))
    assert ((counts - 400) ** 2 / 400).sum() < 30  # chi-square, 9 degrees: p < 5e-4
    assert len({uniform(s, c, p) for s in range(5) for c in range(5) for p in range(5)}) == 125
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def naive(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0) -> np.ndarray:
    """The filters as sets and loops over a sorted list."""
    p = np.exp(logits.astype(np.float64) / temperature - np.max(logits / temperature))
    p /= p.sum()

    def limit(keep):
        kept = np.array([p[i] if i in keep else 0.0 for i in range(p.size)])
        return kept / kept.sum()

    def head(mass, order):
        keep, total = set(), 0.0
        for i in order:
            if total >= mass:
                break
            keep.add(i)
            total += p[i]
        return keep

    everything = range(p.size)
    if top_k > 0:
        kth = np.sort(logits)[::-1][min(top_k, p.size) - 1]
        p = limit({i for i in everything if logits[i] >= kth})
    if top_p < 1:
        p = limit(head(top_p, sorted(everything, key=lambda i: (-p[i], i))))
    if min_p > 0:
        p = limit({i for i in everything if p[i] >= min_p * p.max()})
    if typical_p < 1:
        entropy = -sum(q * np.log(q) for q in p if q > 0)
        alive = [i for i in everything if p[i] > 0]
        order = sorted(alive, key=lambda i: abs(-np.log(p[i]) - entropy))
        p = limit(head(typical_p, order))
    return p


@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 60), temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 70), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1),
    typical_p=st.floats(0.05, 1),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_filters_match_the_plain_definition(
    seed, size, temperature, top_k, top_p, min_p, typical_p
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    settings_ = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "typical_p": typical_p,
    }  # fmt: skip
    ids, weights = candidates(logits, **settings_)
    dense = np.zeros(size)
    dense[ids] = weights / weights.sum()
    # A distance times a scale is rounded once to float32: at most 32 * 2**-24 in an exponent of 2.
    np.testing.assert_allclose(dense, naive(logits, **settings_), atol=2e-6)
    assert (np.diff(ids) > 0).all()


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])  # from flat to peaked
def test_filters_of_a_large_vocabulary(spread) -> None:
    logits = np.random.default_rng(2).normal(0, spread, 20_000).astype(np.float32)
    for filters in ({"top_p": 0.9}, {"top_p": 0.3, "min_p": 0.2}, {"min_p": 0.1}, {"top_k": 50}):
        ids, weights = candidates(logits, temperature=0.8, **filters)
        dense = np.zeros(logits.size)
        dense[ids] = weights / weights.sum()
        expected = naive(logits, temperature=0.8, **filters)
        assert abs(int((dense > 0).sum()) - int((expected > 0).sum())) <= 1  # a token at the border
        np.testing.assert_allclose(dense, expected, atol=2 * expected[expected > 0].min())


@pytest.mark.parametrize("size", [1, 5, 1024, 5000])
def test_a_draw_is_where_its_bits_fall(size) -> None:
    logits = np.random.default_rng(size).normal(0, 2, size).astype(np.float32)
    ids, weights = candidates(logits, temperature=0.7)
    cumulative = np.cumsum(weights.astype(np.float64)) / weights.sum()
    for place in range(200):
        bits = random_bits(5, 0, place)
        at = int(np.flatnonzero(ids == draw(ids, weights, bits))[0])
        assert (cumulative[at - 1] if at else 0.0) - 1e-9 <= bits / 2**64 <= cumulative[at] + 1e-9
    assert draw(ids, weights, 0) == ids[0]
    assert draw(ids, weights, 2**64 - 1) == ids[-1]
    masked = np.array([-np.inf, 3.0, -np.inf], np.float32)
    only = candidates(masked, temperature=1.0)
    assert {draw(*only, bits) for bits in (0, 2**63, 2**64 - 1)} == {1}


def test_draw_follows_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    ids, weights = candidates(logits, temperature=1.0)
    counts = Counter(draw(ids, weights, random_bits(1, 0, i)) for i in range(8000))
    expected = np.array([4000, 2000, 1000, 1000])
    got = np.array([counts[i] for i in range(4)])
    assert ((got - expected) ** 2 / expected).sum() < 18  # chi-square, 3 degrees: p < 5e-4


@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 300), temperature=st.floats(1e-6, 1e6),
    top_k=st.integers(0, 90), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1),
    spread=st.sampled_from([1e-3, 1.0, 8.0, 1e30]), steps=st.sampled_from([0, 1, 3]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_host_draws_what_the_engine_draws(
    seed, size, temperature, top_k, top_p, min_p, spread, steps
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, spread, size).astype(np.float32)
    if steps:  # ties
        row = np.round(row / spread * steps).astype(np.float32)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        repetition_penalty=1.3, frequency_penalty=0.25, presence_penalty=-0.5,
    )  # fmt: skip
    prompt = rng.integers(0, size, 3).astype(np.int32)
    sampler = RowSampler(params, end_ids=(), prompt=prompt, vocab_size=size, limit=9, choice=2)
    assert sampler.is_on_device
    counts = np.zeros((2, size), np.uint32)
    tokens = prompt
    for _ in range(6):
        entries = sampler.counts()
        counts[1] = 0
        counts[1, entries[:, 0]] = entries[:, 1]
        words = sampler.words(slot=1)
        words[SAMPLE_FIELDS.index("position")] = tokens.size
        on_device, _ = reference.sample(row[None].copy(), words[None], counts)
        token_id, _ = sampler.choose(row, tokens=tokens, generated=tokens.size - 3)
        assert token_id == on_device[0]
        sampler.observe(token_id)
        tokens = np.append(tokens, np.int32(token_id))


def choose(row, prompt=(), seen=(), **params):
    tokens = np.array([*prompt, *seen], np.int32)
    sampler = RowSampler(
        SamplingParams(**params),
        end_ids=[2],
        prompt=tokens[: len(prompt)],
        vocab_size=row.size,
        limit=50,
    )
    for token_id in seen:
        sampler.observe(token_id)
    return sampler.choose(row, tokens=tokens, generated=len(seen))


def test_penalties_by_hand() -> None:
    row = np.array([4.0, 3.0, -1.0, 3.5, 0.0], np.float32)
    # repetition 2: token 0 (prompt) 4 -> 2, token 3 (answer) 3.5 -> 1.75; token 1 is now largest
    assert choose(row, [0], [3], temperature=0.0, repetition_penalty=2.0)[0] == 1
    # frequency 0.5: 0 stands twice in the answer, 4 - 1.0 = 3.0 < 3.5; the prompt does not count
    assert choose(row, [3], [0, 0], temperature=0.0, frequency_penalty=0.5)[0] == 3
    assert choose(row, [3], [0], temperature=0.0, frequency_penalty=0.4)[0] == 0
    # presence 0.6 counts once: 4 - 0.6 = 3.4 < 3.5
    assert choose(row, [], [0, 0, 0], temperature=0.0, presence_penalty=0.6)[0] == 3
    # a negative logit is multiplied: -1 * 2 = -2
    low = np.array([-1.0, -1.5], np.float32)
    assert choose(low, [0], temperature=0.0, repetition_penalty=2.0)[0] == 1


def test_bias_and_minimum_length_by_hand() -> None:
    row = np.array([1.0, 2.0, 9.0], np.float32)
    assert choose(row, temperature=0.0)[0] == 2
    assert choose(row, temperature=0.0, min_tokens=1)[0] == 1
    assert choose(row, temperature=0.0, logit_bias={2: -100, 0: 5})[0] == 0
    assert row.tolist() == [1.0, 2.0, 9.0]


def test_logprobs_are_of_the_raw_logits() -> None:
    row = np.array([0.0, np.log(2.0), np.log(5.0)], np.float32)
    token_id, logprobs = choose(row, temperature=0.0, logit_bias={0: 100}, logprobs=2)
    assert token_id == logprobs.token_id == 0
    assert logprobs.logprob == pytest.approx(np.log(1 / 8))
    assert [i for i, _ in logprobs.top] == [2, 1]
    assert [v for _, v in logprobs.top] == pytest.approx([np.log(5 / 8), np.log(2 / 8)])
    assert row_logprobs(np.zeros(4, np.float32), 3, 2).top == (
        (0, np.log(1 / 4)),
        (1, np.log(1 / 4)),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", "1"),
        ("temperature", True), ("top_k", -2), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.01),
        ("min_p", -0.1), ("typical_p", 0.0), ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300), ("repetition_penalty", 1e39),
        ("presence_penalty", 2.5), ("frequency_penalty", float("inf")), ("seed", 2**64),
        ("max_tokens", 0), ("min_tokens", -1), ("stop", ("",)), ("stop", (3,)),
        ("stop_token_ids", (-1,)), ("logprobs", 21), ("logit_bias", {1: 101}),
        ("logit_bias", {"a": 1}), ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("dry_multiplier", -1.0), ("dry_base", 0.5), ("dry_allowed_length", 0), ("dry_range", -1),
        ("dry_sequence_breakers", ("",)), ("xtc_probability", 1.5), ("xtc_threshold", -0.5),
        ("prompt_logprobs", 21),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_field(field, value) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert caught.value.status == 400


def test_params_accept_a_single_stop_text() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_the_context_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ContextLengthError.of(70, 64)))
    assert (error.prompt_tokens, error.context_tokens, error.status) == (70, 64, 400)
    assert error.code == "context_length_exceeded"


@given(st.lists(st.integers(-8, 8), max_size=60))
@settings(max_examples=100, deadline=None)
def test_blocks_neither_leak_nor_serve_twice(moves) -> None:
    manager = BlockManager(20)
    held: list[list[int]] = []
    for move in moves:
        if move >= 0:
            free = manager.num_free
            blocks = manager.allocate(move)
            assert (blocks is None) == (move > free)
            held += [] if blocks is None else [blocks]
        elif held:
            manager.free(held.pop(-move % len(held)))
        everything = [block for blocks in held for block in blocks]
        assert len(set(everything)) == len(everything)
        assert len(everything) + manager.num_free == 20
    for blocks in held:
        manager.free(blocks)
    assert sorted(manager.allocate(20)) == list(range(20))


def test_a_block_freed_twice_is_caught() -> None:
    manager = BlockManager(2)
    blocks = manager.allocate(1)
    manager.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        manager.free(blocks)
