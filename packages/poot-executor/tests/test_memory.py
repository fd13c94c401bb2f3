"""The memory plan: no two intermediates share bytes while both live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poot_executor._memory import place
from poot_executor._planned import Temp

temps = st.lists(
    st.tuples(
        st.sampled_from(["T", "L"]), st.integers(0, 400), st.integers(0, 20), st.integers(0, 20)
    ),
    max_size=40,
)


@given(temps)
def test_live_buffers_never_overlap(drawn):
    rows = {"T": 7, "L": 3}
    records = [Temp(symbol, width) for symbol, width, _, _ in drawn]
    live = [(min(a, b), max(a, b)) for _, _, a, b in drawn]
    arena = place(records, live, rows)
    spans = [
        (offset, offset + temp.row_bytes * rows[temp.symbol])
        for offset, temp in zip(arena.offsets, records, strict=True)
    ]
    for i, (start, end) in enumerate(spans):
        assert start % 64 == 0
        assert end <= arena.nbytes
        for j in range(i):
            if live[i][0] <= live[j][1] and live[j][0] <= live[i][1]:
                assert end <= spans[j][0] or spans[j][1] <= start or start == end
