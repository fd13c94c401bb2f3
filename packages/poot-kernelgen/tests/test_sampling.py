"""Argmax, and pool writes of row programs, on this host against their NumPy meaning."""

from collections.abc import Callable

import numpy as np
import pytest

from poot_core import dtype_by_name
from poot_kernelgen import ArgmaxRequest, KvLayout, RowInput, RowOutput, RowProgram, reference

Launch = Callable[..., None]
RNG = np.random.default_rng(23)


def _argmax(launch: Launch, logits: np.ndarray, chunk: int) -> np.ndarray:
    request = ArgmaxRequest(chunk=chunk)
    rows, columns = logits.shape
    chunks = -(-columns // chunk)
    values, ids = np.full((rows, chunks), 9e9, "f4"), np.full((rows, chunks), -5, np.int32)
    result = np.full(rows, -7, np.int32)
    launch(request, [logits, values, ids, rows, columns], "partial")
    launch(request, [values, ids, result, rows, chunks], "final")
    return result


@pytest.mark.parametrize("columns", [1, 5, 16, 31, 64, 100, 4096, 5000])
@pytest.mark.parametrize("chunk", [64, 4096])
def test_argmax(launch: Launch, columns: int, chunk: int) -> None:
    logits = RNG.standard_normal((7, columns)).astype(np.float32)
    np.testing.assert_array_equal(_argmax(launch, logits, chunk), reference.argmax(logits))


def test_ties_take_the_lowest_id(launch: Launch) -> None:
    logits = RNG.integers(0, 3, (40, 300)).astype(np.float32)
    np.testing.assert_array_equal(_argmax(launch, logits, 64), reference.argmax(logits))


def test_nan_never_wins_and_infinities_order(launch: Launch) -> None:
    logits = RNG.standard_normal((5, 100)).astype(np.float32)
    logits[0, ::2] = np.nan
    logits[1] = np.nan
    logits[2] = -np.inf
    logits[3, 70] = np.inf
    logits[4, :64] = -np.inf
    np.testing.assert_array_equal(_argmax(launch, logits, 64), reference.argmax(logits))


@pytest.mark.parametrize("role", ["key", "value"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(3, 64, 16), (1, 256, 32), (2, 20, 8)])
def test_pool_writes(launch: Launch, role: str, dtype: str, shape: tuple[int, int, int]) -> None:
    heads, dim, block = shape
    layout = KvLayout(role=role, num_kv_heads=heads, head_dim=dim, block_size=block, dtype=dtype)  # type: ignore[arg-type]
    pool = RNG.standard_normal(reference.kv_pool_shape(layout, 4)).astype(
        dtype_by_name(dtype).numpy
    )
    slots = np.array([3, -1, 4 * block - 1, 4 * block, block], np.int32)
    values = RNG.standard_normal((5, heads, dim)).astype(np.float32)
    status, wanted_status = np.zeros((2, 5), np.int32)
    wanted = pool.copy()
    reference.kv_write(layout, wanted, values, slots.astype(np.int64), wanted_status)
    program = RowProgram(
        inputs=(RowInput(dtype="f32", shape=(heads, dim)), RowInput(dtype="i32", shape=())),
        nodes=(),
        outputs=(RowOutput(value=0, kind="kv", slot_input=1, layout=layout),),
    )
    launch(program, [values, slots, pool, 4 * block, 5, status])
    np.testing.assert_array_equal(pool.view("u1"), wanted.view("u1"))
    assert status.tolist() == wanted_status.tolist() == [0, 0, 0, 1, 0]
