import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_serve._frames import (
    Cancel,
    FrameBuffer,
    RowEvent,
    Stepped,
    Submit,
    decode_from_engine,
    decode_to_engine,
    encode_frame,
)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=6), st.integers(1, 9))
def test_frames_survive_any_cut(keys: list[int], step: int) -> None:
    data = b"".join(encode_frame(Cancel(key)) for key in keys)
    buffer = FrameBuffer()
    bodies = [b for at in range(0, len(data), step) for b in buffer.push(data[at : at + step])]
    assert [decode_to_engine(body) for body in bodies] == [Cancel(key) for key in keys]


def test_requests_and_events_round_trip() -> None:
    submit = Submit(key=3, prompt_ids=[1, 2], choice=1, params={"temperature": 0.5, "stop": ["a"]})
    (body,) = FrameBuffer().push(encode_frame(submit))
    assert decode_to_engine(body) == submit
    event = RowEvent(3, [7], None, "length", None, None)
    step = Stepped(events=[event], running=1, waiting=0, free_blocks=2, num_blocks=3)
    (body,) = FrameBuffer().push(encode_frame(step))
    assert decode_from_engine(body) == step


def test_a_lying_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        FrameBuffer().push(b"\xff\xff\xff\xff")
