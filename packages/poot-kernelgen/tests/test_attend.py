"""Attention on this host against its NumPy meaning, and its bits over tiles and chunks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poot_core import DeviceCaps, Target, UnsupportedError, dtype_by_name
from poot_kernel import compile_kernels
from poot_kernel.compile import CompileService
from poot_kernelgen import AttendRequest, KvLayout, generate, reference

Launch = Callable[..., None]
RNG = np.random.default_rng(17)
CAPS = DeviceCaps(
    name="test", vector_bytes=16, subgroup_size=4, num_workers=1, shared_bytes=1 << 20,
    memory_bytes=1 << 30,
)  # fmt: skip
# Scores are sums of up to 256 products of unit normals: f32 rounding of a sum of 256 terms and of
# exponentials gives a few 1e-6 of values whose size is about 1.
CLOSE = {"rtol": 1e-5, "atol": 5e-6}


class Case:
    """Pools, tables and queries of some sequences."""

    def __init__(
        self, contexts: list[tuple[int, int]], *, heads: int = 6, kv_heads: int = 2, dim: int = 64,
        value_dim: int | None = None, block: int = 16, dtype: str = "f32", pairs: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        """``contexts`` holds, for each sequence, its first position and its tokens."""
        key = KvLayout(
            role="key",
            num_kv_heads=kv_heads,
            head_dim=dim,
            block_size=block,
            dtype=dtype,
            pairs=pairs,
        )
        value = KvLayout(role="value", num_kv_heads=kv_heads, head_dim=value_dim or dim,
                         block_size=block, dtype=dtype, pairs=pairs)  # fmt: skip
        options = {"split": 64, **options}
        self.request = AttendRequest(
            num_heads=heads, key=key, value=value, scale=dim**-0.5, **options
        )
        ends = [start + count for start, count in contexts]
        width = max(-(-end // block) for end in ends) + 1
        pool_blocks = width * len(contexts)
        self.tables = RNG.permutation(pool_blocks).astype(np.int32).reshape(len(contexts), width)
        self.pools = tuple(
            RNG.standard_normal(reference.kv_pool_shape(layout, pool_blocks)).astype(
                dtype_by_name(dtype).numpy
            )
            for layout in (key, value)
        )
        # What no sequence has written must not matter, whatever it is.
        for row, end in enumerate(ends):
            block_id, offset = self.tables[row, end // block], end % block
            self.pools[0][block_id, :, :, offset:] = np.nan
            if pairs:
                self.pools[1][block_id, :, -(-offset // 2) :] = np.nan
                if offset % 2:
                    self.pools[1][block_id, :, offset // 2, :, 1] = np.nan
            else:
                self.pools[1][block_id, :, offset:, :] = np.nan
        self.positions = np.concatenate([np.arange(s, s + n) for s, n in contexts]).astype(np.int32)
        self.rows = np.repeat(np.arange(len(contexts)), [n for _, n in contexts]).astype(np.int32)
        self.lengths = np.array(ends, np.int32)
        tokens = len(self.rows)
        self.queries = RNG.standard_normal((tokens, heads, dim)).astype(np.float32)
        self.sinks = RNG.standard_normal(heads).astype(np.float32)
        self.slopes = RNG.uniform(0.01, 0.5, heads).astype(np.float32)

    def work(self, request: AttendRequest, start: int, end: int) -> np.ndarray:
        """Return the work list of tokens start..end."""
        items: list[tuple[int, int, int, int]] = []
        token = start
        while token < end:
            count = 1
            while (
                token + count < end and count < request.query_tile
                and self.rows[token + count] == self.rows[token]
            ):  # fmt: skip
                count += 1
            first, last = int(self.positions[token]), int(self.positions[token + count - 1])
            if not request.causal:
                end_key = int(self.lengths[self.rows[token]])
                last = min(end_key, last + (request.window or end_key)) - 1
            lowest = 0 if request.window is None else max(0, first - request.window + 1)
            for split in range(lowest // request.split, last // request.split + 1):
                edges = split * request.split, (split + 1) * request.split
                items.append((token, count, max(lowest, edges[0]), min(last + 1, edges[1])))
            token += count
        return np.array(items, np.int32)

    def run(
        self, launch: Launch, tile: int | None = None, chunks: list[tuple[int, int]] | None = None
    ) -> np.ndarray:
        """Return the result, with another tile or the tokens in several launches if asked."""
        options = {f: getattr(self.request, f) for f in self.request.__dataclass_fields__}
        request = AttendRequest(**{**options, "query_tile": tile or self.request.query_tile})
        tokens, heads, dim = len(self.rows), request.num_heads, request.value.head_dim
        parts = int(self.positions.max()) // request.split + 1
        result = np.full((tokens, heads, dim), np.nan, np.float32)
        partials = np.full((tokens, parts, heads, dim + 2), np.nan, np.float32)
        extra = [self.sinks] * request.sinks
        lengths = [] if request.causal else [self.lengths]
        if lengths:
            parts = int(self.lengths.max()) // request.split + 1
            partials = np.full((tokens, parts, heads, dim + 2), np.nan, np.float32)
        for start, end in chunks or [(0, tokens)]:
            work = self.work(request, start, end)
            launch(request, [
                self.queries, *self.pools, self.positions, self.rows, self.tables, work, len(work),
                self.tables.shape[1], *lengths, *extra, *[self.slopes] * request.alibi,
                partials, parts, result,
            ])  # fmt: skip
        rows = [self.rows, *lengths] if lengths else []
        launch(request, [partials, parts, self.positions, *rows, *extra, result, tokens], "merge")
        return result

    def wanted(self) -> np.ndarray:
        """Return the reference's result."""
        request = self.request
        return reference.attend(
            request, self.queries, self.pools, self.positions, self.rows, self.tables,
            sinks=self.sinks if request.sinks else None,
            slopes=self.slopes if request.alibi else None,
            lengths=None if request.causal else self.lengths,
        )  # fmt: skip


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_token_sees_later_keys_where_attention_is_not_causal(
    launch: Launch, dtype: str, window: int | None
) -> None:
    """Whole texts of several lengths, over one and over several splits; any tile has the same bits."""
    contexts = [(0, 70), (0, 3), (0, 1), (0, 131), (0, 16), (0, 65)]
    case = Case(contexts, dtype=dtype, causal=False, window=window)
    got = case.run(launch, 8)
    np.testing.assert_allclose(got, case.wanted(), **CLOSE)
    np.testing.assert_array_equal(case.run(launch, 1), got)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tile", [1, 8])
def test_mixed_steps_match(launch: Launch, dtype: str, tile: int) -> None:
    """A long and a short prompt, one that starts late, and single tokens at odd positions."""
    case = Case([(0, 70), (0, 3), (100, 20), (63, 1), (64, 1), (200, 1)], dtype=dtype)
    np.testing.assert_allclose(case.run(launch, tile), case.wanted(), **CLOSE)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "value_dim", "block"),
    [(9, 3, 64, 64, 16), (4, 1, 256, 256, 16), (14, 2, 64, 64, 32), (8, 8, 80, 80, 16),
     (4, 4, 16, 16, 16), (5, 1, 72, 40, 16), (3, 3, 33, 20, 8), (6, 1, 33, 20, 8),
     (32, 2, 128, 128, 32)],
)  # fmt: skip
def test_head_shapes(
    launch: Launch, heads: int, kv_heads: int, dim: int, value_dim: int, block: int
) -> None:
    case = Case(
        [(0, 37), (90, 1)],
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        block=block,
    )
    for tile in (1, 4) if dim == 64 else (3,):
        np.testing.assert_allclose(case.run(launch, tile), case.wanted(), **CLOSE)


@pytest.mark.parametrize(
    "options",
    [{"window": 20}, {"window": 1}, {"window": 100}, {"softcap": 5.0}, {"sinks": True},
     {"alibi": True}, {"window": 33, "sinks": True, "alibi": True, "softcap": 20.0}],
    ids=str,
)  # fmt: skip
def test_masks_and_score_changes(launch: Launch, options: dict[str, Any]) -> None:
    case = Case([(0, 75), (150, 30), (129, 1)], **options)
    np.testing.assert_allclose(case.run(launch, 5), case.wanted(), **CLOSE)


PAIRS: dict[str, Any] = {"dtype": "bf16", "pairs": True}


def assert_close_pairs(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare, allowing for weights that f32 rounding moved over a step of bf16 (2**-8 of them)."""
    distance = np.abs(found - wanted)
    assert np.quantile(distance, 0.99) < 2e-5
    assert distance.max() < 4e-3


@pytest.mark.parametrize("tile", [1, 3, 8])
@pytest.mark.parametrize(
    "options",
    [{}, {"window": 33}, {"softcap": 5.0, "sinks": True}, {"alibi": True, "window": 20},
     {"heads": 4, "kv_heads": 1, "dim": 256}, {"heads": 14, "block": 32},
     {"heads": 8, "kv_heads": 8, "dim": 80}, {"heads": 5, "kv_heads": 1, "dim": 72, "value_dim": 40}],
    ids=str,
)  # fmt: skip
def test_pools_of_pairs(launch: Launch, options: dict[str, Any], tile: int) -> None:
    case = Case([(0, 75), (150, 30), (129, 1), (0, 1), (63, 2)], **PAIRS, **options)
    assert_close_pairs(case.run(launch, tile), case.wanted())


@pytest.mark.parametrize("tile", [1, 8])
def test_scores_far_apart(launch: Launch, tile: int) -> None:
    """Weights down to and below the smallest numbers; scores of some hundreds round at 1e-5."""
    case = Case([(0, 75), (150, 30)])
    case.queries *= 100
    wanted = case.wanted()
    np.testing.assert_allclose(case.run(launch, tile), wanted, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 40, "sinks": True}, {"split": 128}, {"heads": 14, "block": 32}, PAIRS,
     {"window": 41, **PAIRS}],
    ids=str,
)  # fmt: skip
def test_bits_do_not_depend_on_tile_batch_or_chunks(
    launch: Launch, options: dict[str, Any]
) -> None:
    case = Case([(0, 150), (77, 9), (64, 1)], **{"dtype": "f16", **options})
    whole = case.run(launch, 1)
    for tile in (3, 16):
        np.testing.assert_array_equal(case.run(launch, tile), whole)
    pieces = [(0, 5), (5, 64), (64, 150), (150, 160)]
    np.testing.assert_array_equal(case.run(launch, 16, pieces), whole)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "f16"}, {"window": 20, "sinks": True, "heads": 3, "kv_heads": 1}, {"alibi": True},
     {"softcap": 5.0, "dim": 20, "value_dim": 12}],
    ids=str,
)  # fmt: skip
def test_gpu_schedules_match_and_their_bits_do_not_depend_on_tiles(
    gpu: Launch, options: dict[str, Any]
) -> None:
    case = Case([(60, 9), (0, 3), (130, 1)], **{"heads": 4, "dim": 16, **options})
    whole = case.run(gpu, 1)
    np.testing.assert_allclose(whole, case.wanted(), **CLOSE)
    np.testing.assert_array_equal(case.run(gpu, 8, [(0, 4), (4, 13)]), whole)


def test_neon_compiles(service: CompileService) -> None:
    request = Case([(0, 4)], dtype="f16", query_tile=8).request
    target = Target("cpu", "aarch64", frozenset({"neon"}))
    kernels = generate(request, target, CAPS)
    for found in compile_kernels([k.function for k in kernels], target, service):
        assert found.data[:4] == b"\x7fELF"


def test_refusals() -> None:
    target = Target("cpu", "aarch64", frozenset({"neon"}))
    for options, message in (
        ({"heads": 5}, "5 heads over 2 kv heads"),
        ({"split": 24, "block": 8}, "split 24 is no multiple of 16"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            generate(Case([(0, 4)], **options).request, target, CAPS)
