"""Decode steps are recorded when their sizes repeat, and only where a device replays."""

from __future__ import annotations

import pytest

from poot_executor._device_runner import DeviceRunner
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
    runner._last_step, runner._may_capture = None, True
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
    assert captured == ([4, 5] if replays else [4])
    assert [sizes["W0"] for what, _, sizes in device.calls if what == "run"] == [
        w for _, w in steps
    ]
