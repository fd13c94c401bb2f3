"""The attention work list: each visible key once, inside one split or, joined, in one item."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from poot_executor._attention_work import fill_work, work_capacity
from poot_executor._program import AttentionClass

rows_of_step = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), min_size=1, max_size=6)


@given(
    rows=rows_of_step,
    window=st.one_of(st.none(), st.integers(1, 40)),
    split=st.sampled_from([4, 16, 64]),
    tile=st.integers(1, 9),
    causal=st.booleans(),
    may_join=st.booleans(),
)
def test_every_visible_key_is_covered_once(rows, window, split, tile, causal, may_join):
    positions = np.concatenate([np.arange(p, p + n) for p, n in rows]).astype(np.int32)
    numbers = np.repeat(np.arange(len(rows)), [n for _, n in rows]).astype(np.int32)
    attention = AttentionClass(window, split, (1, tile), -(-112 // split), causal, may_join)
    lengths = np.array([p + n + (p % 3 if not causal else 0) for p, n in rows], np.int32)

    def last_key(token):
        position = int(positions[token])
        if causal:
            return position
        end = int(lengths[numbers[token]])
        return (end if window is None else min(end, position + window)) - 1

    out = np.full((work_capacity(attention, len(positions), len(rows)), 4), -1, np.int32)
    is_decode = len(positions) == len(rows)
    work = fill_work(attention, positions, numbers, lengths, is_decode=is_decode, out=out)
    seen = [[] for _ in positions]
    items = out[: work.num_items].tolist()
    is_joined = any(low // split != (end - 1) // split for *_, low, end in items)
    assert not is_joined or (may_join and not is_decode)
    assert not is_joined or work.num_items == len({first for first, *_ in items})
    for first, count, low, end in out[: work.num_items].tolist():
        assert 1 <= count <= (1 if is_decode else tile)
        assert low < end
        assert is_joined or low // split == (end - 1) // split
        assert len(set(numbers[first : first + count].tolist())) == 1
        for token in range(first, first + count):
            position = int(positions[token])
            lowest = 0 if window is None else max(0, position - window + 1)
            seen[token] += range(max(low, lowest), min(end, last_key(token) + 1))
    spans = []
    for token, (position, keys) in enumerate(zip(positions.tolist(), seen, strict=True)):
        lowest = 0 if window is None else max(0, position - window + 1)
        assert sorted(keys) == list(range(lowest, last_key(token) + 1))
        spans.append(last_key(token) // split - lowest // split + 1)
    assert work.max_splits == (1 if is_joined else max(spans))


def filled(attention, *rows):
    """Return the work list of a step of (first position, tokens) each."""
    positions = np.concatenate([np.arange(p, p + n) for p, n in rows]).astype(np.int32)
    numbers = np.repeat(np.arange(len(rows)), [n for _, n in rows]).astype(np.int32)
    lengths = np.array([p + n for p, n in rows], np.int32)
    out = np.zeros((work_capacity(attention, len(positions), len(rows)), 4), np.int32)
    work = fill_work(attention, positions, numbers, lengths, is_decode=False, out=out)
    return work, out[: work.num_items].tolist()


def test_splits_are_joined_where_no_tile_is_much_longer_than_the_others():
    attention = AttentionClass(None, 512, (1, 32), 16, may_join=True)
    work, items = filled(attention, (0, 2048))
    assert work == (64, 1)
    assert items[-1] == [2016, 32, 0, 2048]
    # One long row beside a short prompt would be a single item that all others wait for.
    work, items = filled(attention, (0, 256), (8000, 1))
    assert work == (8 + 16, 16)
    assert max(end - low for *_, low, end in items) == 512
    # Many long rows are joined again; a class whose kernel takes items of one split never is.
    assert filled(attention, *[(8000, 1)] * 20, (0, 256))[0].max_splits == 1
    cut = AttentionClass(None, 512, (1, 32), 16)
    assert filled(cut, (0, 2048))[0] == (64 + 48 + 32 + 16, 4)
