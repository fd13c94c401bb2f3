"""The table on every installed device: some of each group, all of it among the slow tests."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from poot_core import DeviceError, Settings
from poot_executor_parity import CASES, run_case

DEVICES = sorted(point.name for point in entry_points(group="poot.devices"))
QUICK = {
    "binary/select",
    "view/interleaved",
    "reduce/softmax",
    "reduce/odd width",
    "product/bf16",
    "product/odd N",
    "product auto/Q4_1",
    "product auto/Q6_K",
    "epilogue/gated gelu biased",
    "epilogue/residual",
    "embedding/Q8_0",
    "attention/sinks",
    "attention f16/groups of 3",
}
PARAMETERS = [
    pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.slow])
    for case in CASES
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", PARAMETERS)
def test_kernels_of_the_device_equal_the_oracle(case, device):
    try:
        outcome = run_case(case, device, Settings.from_environment())
    except DeviceError as error:
        pytest.skip(f"{device}: {error.message}")
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"


def test_the_quick_ones_exist():
    assert {case.name for case in CASES} >= QUICK
