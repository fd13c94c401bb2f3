"""The whole parity table on this device."""

from __future__ import annotations

import pytest

parity = pytest.importorskip("poot_executor_parity", reason="needs the workspace")
pytestmark = pytest.mark.device


@pytest.mark.parametrize("case", parity.CASES, ids=lambda case: case.name)
def test_kernels_equal_the_oracle(case, settings):
    outcome = parity.run_case(case, "wgpu", settings)
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"
