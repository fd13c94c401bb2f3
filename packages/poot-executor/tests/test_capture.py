"""Decode steps are recorded when their sizes repeat, and only where a device replays."""

from __future__ import annotations

import pytest

from poot_core import DeviceError
from poot_executor._attention_work import Work
from poot_executor._device_runner import DeviceRunner
from poot_executor._ladder import Recordings, ladder, rounded_work
from poot_executor._program import AttentionClass
from poot_executor._runner import StepKey

DECODE = StepKey(tokens=1, logits=1, is_decode=True, merges=(False,))
PROMPT = StepKey(tokens=3, logits=0, is_decode=False, merges=(False,))


class _Device:
    def __init__(self, *, replays):
        self.replays = replays
        self.calls = []

    def capture(self, prepared, sizes):
        self.calls.append(("capture", prepared, dict(sizes)))
        return self.replays

    def run(self, prepared, sizes):
        self.calls.append(("run", prepared, dict(sizes)))


class _Memory:
    def flush(self):
        pass


def runner_over(device):
    runner = object.__new__(DeviceRunner)
    runner.device = device
    runner._host = _Memory()
    runner._prepared = {DECODE: "decode", PROMPT: "prompt"}
    runner._last_step, runner._captured = None, set()
    runner.may_capture, runner.recordings = True, Recordings()
    return runner


@pytest.mark.parametrize("replays", [True, False])
def test_a_step_is_recorded_when_its_sizes_repeat(replays):
    device = _Device(replays=replays)
    runner = runner_over(device)
    steps = [(PROMPT, 7), (PROMPT, 7), (DECODE, 4), (DECODE, 4), (DECODE, 5), (DECODE, 4),
             (DECODE, 5), (DECODE, 5)]  # fmt: skip
    for key, work in steps:
        runner.run(key, {"T": 3, "W0": work})
    captured = [sizes["W0"] for what, _, sizes in device.calls if what == "capture"]
    found = runner.recordings
    assert (found.ahead, found.in_steps) == (0, 2 if replays else 0)
    assert 0 <= found.longest_s <= found.in_steps_s
    assert captured == ([4, 5] if replays else [4])
    assert [sizes["W0"] for what, _, sizes in device.calls if what == "run"] == [
        w for _, w in steps
    ]


def test_a_step_that_was_recorded_ahead_waits_for_nothing():
    runner = runner_over(_Device(replays=True))
    assert runner.capture(DECODE, {"T": 3, "W0": 4})
    for _ in range(3):
        runner.run(DECODE, {"T": 3, "W0": 4})
    assert (runner.recordings.ahead, runner.recordings.in_steps) == (1, 0)


def test_a_device_that_cannot_record_still_runs(caplog):
    device = _Device(replays=True)

    def refuse(prepared, sizes):
        raise DeviceError("no room for a graph")

    device.capture = refuse
    runner = runner_over(device)
    for _ in range(4):
        runner.run(DECODE, {"T": 3, "W0": 4})
    assert [what for what, *_ in device.calls] == ["run"] * 4
    assert [record.message for record in caplog.records] == [
        "a decode step cannot be recorded, so none is any more: no room for a graph"
    ]
    assert runner.recordings == Recordings()


def attention(split, window=None):
    return AttentionClass(
        window=window, split=split, query_tiles=(1, 8), max_splits=-(-4096 // split)
    )


def test_the_ladder_is_bounded_and_begins_with_short_contexts():
    rungs = list(ladder([attention(256), attention(512, 100)], 100, 4096))
    assert rungs[:64] == [(rows, 255) for rows in range(1, 65)]
    assert {position for _, position in rungs[64:]} == {511, 1023, 2047, 4095}
    assert len(rungs) == len(set(rungs)) == 64 + 8 * 4
    assert list(ladder([attention(256)], 2, 100)) == [(1, 99), (2, 99)]
    assert list(ladder([], 3, 128)) == [(1, 127), (2, 127), (3, 127)]


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_rounded_sizes_are_few_and_little_larger(rows):
    found = set()
    for items in range(rows, rows * 16 + 1):
        most = min(16, items - rows + 1)
        rounded = rounded_work(Work(items, most), rows, rows * 16, 16)
        assert items <= rounded.num_items <= max(items * 1.25, items + rows - 1)
        assert most <= rounded.max_splits <= 16
        assert (rounded.max_splits == 1) == (most == 1)  # what decides whether a merge runs
        found.add(rounded.num_items)
    assert len(found) <= 21
