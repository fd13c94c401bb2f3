"""Every kind of kernel through the device class in simulation, against the oracle.

The whole table on one architecture takes a quarter of an hour: here are all row programs on one, and
of each other kind what differs in code, on one architecture of each family.
"""

from contextlib import closing

import numpy as np
import pytest

from poot_amd_sim import WAVE_ORDERS
from poot_core import Settings
from poot_executor_parity import CASES, open_case, run_case, step_inputs

pytestmark = pytest.mark.sim
ROWS = [c.name for c in CASES if c.name.split("/")[0] in ("unary", "binary", "view", "reduce")]
SOME_ROWS = [
    "unary/convert bf16",
    "binary/pow",
    "view/interleaved",
    "reduce/softmax",
    "reduce/wide",
]
PRODUCTS = [
    "product/f32", "product/bf16", "product/Q4_0", "product/Q6_K", "product/IQ4_NL",
    "product auto/Q4_1", "product auto/bf16", "product/odd N", "epilogue/gated gelu biased",
    "epilogue/residual",
]  # fmt: skip
SOME_PRODUCTS = ["product/f16", "product auto/bf16", "product auto/Q8_0", "epilogue/gated"]
GATHERS = ["embedding/bf16", "embedding/Q4_K"]
ATTENTION = [
    "attention/plain", "attention/sinks", "attention/window of one", "attention/rotary",
    "attention f16/rotary",
]  # fmt: skip
TABLE = [
    *(("gfx1100", name) for name in (*ROWS, *PRODUCTS, *GATHERS, *ATTENTION)),
    *(("gfx942", name) for name in (*SOME_ROWS, *SOME_PRODUCTS, *GATHERS, "attention/softcap")),
    *(("gfx1201", name) for name in ("reduce/softmax", "product auto/bf16", "attention/alibi")),
    *(("gfx1030", name) for name in ("reduce/softmax", "product auto/Q4_0", "embedding/Q8_0")),
]
BY_NAME = {case.name: case for case in CASES}


def check(name):
    outcome = run_case(BY_NAME[name], "rocm", Settings())
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"


@pytest.mark.parametrize(("arch", "name"), TABLE)
def test_kernels_equal_the_oracle(simulated, arch, name):
    opened = simulated(arch)
    check(name)
    assert opened[-1].executed > 0


@pytest.mark.parametrize("order", [order for order in WAVE_ORDERS if order != "lockstep"])
@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_no_order_of_waves_changes_a_row_program(simulated, arch, order):
    simulated(arch, order)
    check("reduce/layer norm")


def test_steps_recorded_ahead_give_the_same_bits_on_matrix_instructions(simulated):
    """Four rows, one of two splits: eight work items are launched for five, three without keys."""
    simulated("gfx1100")
    found = []
    for is_ahead in (False, True):
        with closing(open_case(BY_NAME["attention f16/plain"], "rocm", Settings())) as engine:
            computed = [0] * 4
            for counts in ((5, 5, 3, 300), (1, 1, 1, 260)):
                engine.forward(step_inputs(counts, computed))
            engine.runner.may_capture = (
                is_ahead  # otherwise launch by launch, of the sizes there are
            )
            for _ in range(3):
                engine.forward(step_inputs((1, 1, 1, 1), computed))
                assert engine.sizes["W0"] == (8 if is_ahead else 5)
                found.append(engine.logits().copy())
            assert engine.recordings.in_steps == (1 if is_ahead else 0)
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[:3], found[3:])
