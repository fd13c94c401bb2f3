"""The whole table on every device; on the host all but some of each group are slow."""

from __future__ import annotations

import pytest

from poot_core import Settings
from poot_executor_parity import CASES, run_case
from poot_test_util import device_parameters

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
ALL_CASES = [pytest.param(case, id=case.name) for case in CASES]
HOST_CASES = [
    pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)
    for case in CASES
]


@pytest.mark.parametrize("device", device_parameters())
@pytest.mark.parametrize("case", ALL_CASES)
def test_kernels_of_the_device_equal_the_oracle(case, device):
    check(case, device)


@pytest.mark.parametrize("case", HOST_CASES)
def test_kernels_of_the_host_equal_the_oracle(case):
    check(case, "cpu")


def check(case, device):
    outcome = run_case(case, device, Settings.from_environment())
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"


def test_the_quick_ones_exist():
    assert {case.name for case in CASES} >= QUICK
