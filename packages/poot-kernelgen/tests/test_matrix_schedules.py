"""Contractions and attention for matrix instructions: meaning in the interpreter, code for GPUs."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from poot_core import DeviceCaps, Target
from poot_kernel.interpreter import interpret
from poot_kernel.targets.nvptx import assemble_ptx, find_ptxas, package_kernels
from poot_kernelgen import generate, joined_tile_for
from poot_kernelgen.requests import (
    AttendRequest,
    ContractionRequest,
    Epilogue,
    KvLayout,
    RowNode,
    WeightLayout,
)

CAPS = DeviceCaps(
    name="gpu", vector_bytes=16, subgroup_size=32, num_workers=132, shared_bytes=232448,
    memory_bytes=1 << 37, max_workgroup=1024,
)  # fmt: skip
SHARED = {"sm_80": 166912, "sm_90a": 232448, "sm_120": 101376}
RNG = np.random.default_rng(19)
RESIDUAL = Epilogue(
    inputs=("full",), nodes=(RowNode(op="add", operands=(0, 1), shape=(), dtype="f32"),)
)
PRODUCT = Epilogue(nodes=(RowNode(op="mul", operands=(0, 1), shape=(), dtype="f32"),))
BIAS = Epilogue(
    inputs=("column",), nodes=(RowNode(op="add", operands=(0, 1), shape=(), dtype="f32"),)
)
ROWS = {"one": 1, "few": 6, "some": 11, "many": 67}


def target(arch="sm_90a", *more):
    return Target("ptx", arch, frozenset({"mma-k16", *more}))


def contraction(regime, epilogue, *, gated=False, is_wide=False, dtype="f32"):
    layout = WeightLayout(source="bf16", order="rows", interleave=16)
    return ContractionRequest(
        weight=layout, activation="bf16", regime=regime, epilogue=epilogue, gated=gated,
        is_wide=is_wide, result_dtype=dtype,
    )  # fmt: skip


def kernel(request, caps=CAPS):
    return generate(request, target(), caps)[0].function


def kernel_on(request, on):
    return generate(request, on, CAPS)[0].function


def bf16(*shape):
    return (RNG.standard_normal(shape) * 0.2).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("regime", ROWS)
@pytest.mark.parametrize("kind", ["residual", "bias", "gated", "rounded"])
def test_contractions_mean_their_request(regime, kind, is_wide):
    rows, n, k = ROWS[regime], 40, 1088
    epilogue = {"residual": RESIDUAL, "bias": BIAS, "gated": PRODUCT}.get(kind, Epilogue())
    dtype = "bf16" if kind == "rounded" else "f32"
    function = kernel(
        contraction(regime, epilogue, gated=kind == "gated", is_wide=is_wide, dtype=dtype)
    )
    groups = -(-n // 16)
    x, w = bf16(rows, k), bf16(groups * (32 if kind == "gated" else 16), k)
    exact, weights = x.astype(np.float64), w.astype(np.float64)
    y = np.full((rows, n + 3), np.nan, ml_dtypes.bfloat16 if kind == "rounded" else np.float32)
    extra = []
    if kind == "gated":
        pairs = weights.reshape(groups, 2, 16, k)
        halves = [exact @ pairs[:, half].reshape(-1, k)[:n].T for half in range(2)]
        wanted = halves[0] * halves[1]
    else:
        wanted = exact @ weights[:n].T
    if kind == "residual":
        extra = [RNG.standard_normal((rows, n)).astype(np.float32)]
        wanted = wanted + extra[0]
    if kind == "bias":
        extra = [RNG.standard_normal(n).astype(np.float32)]
        wanted = wanted + extra[0]
    interpret(function, [w, x, *extra, y, rows, n, k, n + 3])
    tolerance = 2**-8 * np.abs(wanted).max() if kind == "rounded" else 2e-5
    np.testing.assert_allclose(y[:, :n].astype(np.float64), wanted, atol=tolerance, rtol=0)
    assert np.isnan(y[:, n:].astype(np.float32)).all()


def test_a_weight_has_one_signature():
    for is_wide in (False, True):
        found = {
            op.attributes["signature"]
            for regime in ROWS
            for op in kernel(contraction(regime, RESIDUAL, is_wide=is_wide)).body.walk()
            if op.opcode == "mma"
        }
        assert found == {"k16" if is_wide else "k16_chunk1024"}


def attend(window=None, query_tile=1, *, heads=4, kv_heads=2, dim=64, block=32, split=128):
    def layout(role):
        return KvLayout(
            role=role, num_kv_heads=kv_heads, head_dim=dim, block_size=block, dtype="f16"
        )

    return AttendRequest(
        num_heads=heads, key=layout("key"), value=layout("value"), scale=dim**-0.5, window=window,
        query_tile=query_tile, split=split,
    )  # fmt: skip


def items_of(positions, window, split, tile, *, joined=False):
    """Return work items of one sequence's tokens, as the planner's list has them."""
    found = []
    for start in range(0, len(positions), tile):
        part = positions[start : start + tile]
        low = 0 if window is None else max(0, part[0] - window + 1)
        end = part[-1] + 1
        if joined:
            found.append((start, len(part), low, end))
            continue
        for number in range(low // split, (end - 1) // split + 1):
            bounds = max(low, number * split), min(end, (number + 1) * split)
            found.append((start, len(part), *bounds))
    return np.array(found, np.int32)


@pytest.mark.parametrize(
    ("facts", "first", "count"),
    [
        ({}, 299, 1),
        ({"query_tile": 8}, 290, 10),
        ({"heads": 14, "block": 16, "split": 256, "query_tile": 4}, 100, 3),
        (
            {"heads": 7, "kv_heads": 1, "dim": 32, "block": 64, "window": 100, "query_tile": 8},
            290,
            5,
        ),
        ({"heads": 8, "kv_heads": 8, "dim": 128, "split": 512}, 5, 1),
    ],
)
def test_attention_means_its_request(facts, first, count):
    check_attention(attend(**facts), target(), first, count)


def check_attention(request, on, first, count, *, joined=False):
    """Compare a prompt's last tokens with float64 and return them."""
    rng = np.random.default_rng(19)
    main, merge = (k.function for k in generate(request, on, CAPS))
    heads, kv_heads, dim = request.num_heads, request.key.num_kv_heads, request.key.head_dim
    block, tokens = request.key.block_size, first + count
    num_blocks = -(-tokens // block) + 1
    keys, values = (
        rng.standard_normal((num_blocks * block, kv_heads, dim)).astype(np.float16)
        for _ in range(2)
    )
    order = rng.permutation(num_blocks)
    key_pool = np.zeros((num_blocks, kv_heads, dim, block), np.float16)
    value_pool = np.zeros((num_blocks, kv_heads, block, dim), np.float16)
    for number, place in enumerate(order):
        part = slice(number * block, (number + 1) * block)
        key_pool[place] = keys[part].transpose(1, 2, 0)
        value_pool[place] = values[part].transpose(1, 0, 2)
    queries = rng.standard_normal((count, heads, dim)).astype(np.float32)
    positions = np.arange(first, tokens, dtype=np.int32)
    facts = positions.tolist(), request.window, request.split, request.query_tile
    work = items_of(*facts, joined=joined)
    parts = 8
    partials = np.full((count * parts * heads, dim + 2), np.nan, np.float32)
    result = np.full((count, heads, dim), np.nan, np.float32)
    interpret(main, [
        queries.reshape(-1, dim), key_pool, value_pool, positions, np.zeros(count, np.int32),
        order[None].astype(np.int32), work, len(work), num_blocks, partials, parts,
        result.reshape(-1, dim),
    ])  # fmt: skip
    if not joined:
        interpret(merge, [partials.reshape(-1), parts, positions, result, count])
    for token in range(count):
        last = first + token
        low = 0 if request.window is None else max(0, last - request.window + 1)
        for head in range(heads):
            own = head // (heads // kv_heads)
            seen = keys[low : last + 1, own].astype(np.float64)
            score = seen @ queries[token, head].astype(np.float64) * request.scale
            weight = np.exp(score - score.max())
            wanted = weight @ values[low : last + 1, own].astype(np.float64) / weight.sum()
            # Queries and weights are rounded to f16: 2^-11 of each of up to 300 terms of size 1.
            np.testing.assert_allclose(result[token, head], wanted, atol=2e-3, rtol=0)
    return result


@pytest.mark.parametrize(
    ("facts", "first", "count"),
    [
        ({"heads": 4, "kv_heads": 1, "block": 16}, 250, 40),
        ({"heads": 4, "kv_heads": 2, "window": 100}, 200, 70),
        ({"heads": 12, "kv_heads": 2, "block": 64, "split": 64}, 0, 70),
    ],
)
def test_items_of_several_splits_have_the_bits_of_cut_ones(facts, first, count):
    on = target("sm_90a", "mma-async")
    tile = joined_tile_for(attend(**facts), on, CAPS)
    assert tile == {4: 32, 2: 64, 6: 16}[facts["heads"] // facts["kv_heads"]]
    request = attend(query_tile=tile, **facts)
    whole = check_attention(request, on, first, count, joined=True)
    cut = check_attention(request, on, first, count)
    np.testing.assert_array_equal(whole.view(np.uint32), cut.view(np.uint32))
    # The kernel of single tokens adds in the same order.
    single = check_attention(attend(**facts), on, first + count - 3, 3)
    assert np.abs(single - check_attention(request, on, first + count - 3, 3)).max() < 1e-6


def test_only_plain_attention_over_wide_heads_joins_splits():
    on = target("sm_90a", "mma-async")
    assert joined_tile_for(attend(), target(), CAPS) == 0
    assert joined_tile_for(attend(dim=32), on, CAPS) == 0
    assert joined_tile_for(replace(attend(), softcap=2.0), on, CAPS) == 0
    assert joined_tile_for(attend(heads=128, kv_heads=1), on, CAPS) == 0  # a tile of one token


@pytest.mark.parametrize(("block", "loads"), [(16, (4, 4)), (32, (2, 2)), (64, (1, 1))])
def test_blocks_of_keys_are_one_operand(block, loads):
    on = target("sm_90a", "mma-async")
    request = attend(heads=32, kv_heads=8, dim=128, block=block, split=512, query_tile=32)
    (package,) = package_kernels([kernel_on(request, on)], on, CAPS, None)  # type: ignore[arg-type]
    code = package.code.decode()
    # Parts without masks and those with: each a loop and its last turn, begun by scores alone.
    assert code.count("wgmma.mma_async.sync.aligned.m64n64k16") == 2 * 2 * 8
    assert code.count("wgmma.mma_async.sync.aligned.m64n128k16") == 2 * 2 * 4
    # A block of keys is one load, one of values two: rows of 256 bytes are cut in two.
    keys, values = loads
    assert code.count("cp.async.bulk.tensor.2d") == 2 * (keys + 2 * values)
    # Keys of the n-th block begin n rows earlier, so that each size of a copy has its own map.
    boxes = [m.box for m in package.tensor_maps]
    assert boxes == [*((128 + n, block) for n in range(keys)), (block, 64)]
    assert not package.is_persistent
    assert package.threads == 384
    if find_ptxas() is not None:
        assembly = assemble_ptx(code, arch="sm_90a")
        assert assembly.spill_bytes == 0


@pytest.mark.parametrize("arch", SHARED)
def test_every_kernel_assembles(arch):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    caps = replace(CAPS, shared_bytes=SHARED[arch])
    requests = [contraction(r, RESIDUAL) for r in ("one", "many")]
    requests += [contraction("few", PRODUCT, gated=True, is_wide=True, dtype="bf16")]
    requests += [contraction("some", Epilogue(), is_wide=True), attend(), attend(query_tile=16)]
    functions = [k.function for r in requests for k in generate(r, target(arch), caps)]
    for package in package_kernels(functions, target(arch), caps, None):  # type: ignore[arg-type]
        assembly = assemble_ptx(package.code.decode(), arch=arch)
        assert assembly.spill_bytes < 256, package.name
        assert package.is_overlapping == (arch != "sm_80")
