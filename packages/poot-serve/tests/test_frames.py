import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_llm import Constraint, Logprobs, SamplingParams, Timings
from poot_serve._frames import (
    Cancel,
    EngineMetrics,
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
    params = SamplingParams(
        temperature=0.5, stop=("a",), logit_bias={3: -1.5}, seed=2**63, prompt_logprobs=2,
        max_tokens=0, constraint=Constraint.choice(["é", "no"]), dry_multiplier=0.5,
    )  # fmt: skip
    submit = Submit(
        key=3, prompt=b"\1\0\0\0", choice=1, params=params, cache_salt="a", priority=-1,
        deadline_s=2.5,
    )  # fmt: skip
    (body,) = FrameBuffer().push(encode_frame(submit))
    assert decode_to_engine(body) == submit
    logprobs = Logprobs(7, -0.5, ((7, -0.5), (2, -1.25)))
    timings = Timings(
        queue_s=0.5, prefill_s=0.25, decode_s=1.5, prompt_tokens=9, output_tokens=4, cached_tokens=8
    )
    event = RowEvent(3, [7], [logprobs], "length", None, timings, 8, [None, logprobs])
    metrics = EngineMetrics(running=1, steps=9, step_s=0.5, prefix_hit_tokens=8)
    step = Stepped(keys=[4, 5], token_ids=[6, 7], events=[event], metrics=metrics)
    (body,) = FrameBuffer().push(encode_frame(step))
    assert decode_from_engine(body) == step


def test_a_lying_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        FrameBuffer().push(b"\xff\xff\xff\xff")
