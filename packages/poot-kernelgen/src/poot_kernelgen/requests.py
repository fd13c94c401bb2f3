"""What a planner asks of kernelgen: typed, hashable records; kernelgen knows no graph.

Every request names kernels by meaning. ``generate(request, target, caps)`` answers with kernel IR and
its launch shape. Sizes that a step changes (T, R, L) and matrix sizes (N, K) are run-time scalars of
the kernels, so that one kernel serves all layers and all models of a format.

The status argument that several kernels take points at i32 flags, one per row of the kernel's domain
(token, or wanted position): a kernel that clamps a data-dependent index ORs 1 into the flag of the
row at fault. No other row's flag is touched, so the writes of workgroups never meet.

``poot_kernelgen.reference`` is the NumPy meaning of every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "EIGHT_BIT",
    "SAMPLE_FIELDS",
    "WITH_RESIDUAL",
    "Activation",
    "ArgmaxRequest",
    "AttendRequest",
    "ContractionRequest",
    "CountRequest",
    "Epilogue",
    "FeedRequest",
    "Flight",
    "GatherRequest",
    "KvLayout",
    "PackRequest",
    "Regime",
    "Request",
    "RowInput",
    "RowNode",
    "RowOutput",
    "RowProgram",
    "SampleRequest",
    "WeightLayout",
]

Flight = Literal["few", "many", "all"]
Regime = Literal["one", "few", "some", "many"]
"""Rows of the left operand: 1; 2 to 8; 9 to 64; more."""

Activation = Literal["f32", "bf16", "i8", "i8r", "u8r"]
"""What the left operand is rounded to. ``i8``: blocks of 32 with an f32 scale and the block's sum.
``i8r``: the same, and where a block's largest element is over so many times the row's root mean square
(``RowOutput.outlier``), the rounding error of the block in 256ths of its scale as well: outlier channels
cost most of the accuracy of ``i8``. ``u8r``: ``i8r`` with both planes of codes 128 more, as u8:
instructions that multiply unsigned by signed bytes then take signed weights, whose zero is free."""
EIGHT_BIT: frozenset[str] = frozenset({"i8", "i8r", "u8r"})
"""Kinds of activations in 8 bits: codes, scales and sums, of which products are integers."""
WITH_RESIDUAL: frozenset[str] = frozenset({"i8r", "u8r"})
"""Those with a second plane of codes and its scales."""


# --- Row programs: everything pointwise, normalising, rotary, quantising --------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInput:
    """One array that a row program reads.

    Attributes:
        dtype: Name of the element type.
        shape: Shape of one row (without the symbolic leading dimension).
        per_row: Whether there is one such row per row of the domain; otherwise all rows share it.
        indexed_by: Index of another input (i32, shape ()) whose value picks the row to read, or None.
            An index out of range is clamped and flagged in the status word.
    """

    dtype: str
    shape: tuple[int, ...]
    per_row: bool = True
    indexed_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNode:
    """One equation of a row program; operands number inputs first, then nodes.

    Attributes:
        op: A primitive of the graph: elementwise names (``add``, ``exp``, ...), ``select``,
            ``convert``, ``broadcast``, ``reshape``, ``transpose``, ``slice``, ``concatenate``,
            ``reduce_sum``, ``reduce_max``, ``reduce_min``, ``iota``, ``literal``.
        operands: Numbers of the values it reads.
        shape: Row-local result shape.
        dtype: Name of the result's element type.
        attributes: Sorted (name, value) pairs: ``value`` (literal scalar), ``axes`` (reduce; kept as
            size 1 never: reduced axes are dropped), ``dimensions`` (broadcast: result axes that the
            operand's axes map to), ``starts``/``limits``/``strides`` (slice), ``axis``
            (concatenate, iota), ``permutation`` (transpose).
    """

    op: str
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutput:
    """One result of a row program.

    Attributes:
        value: Number of the value that is stored.
        kind: ``plain`` stores it as it is. ``i8`` stores three arrays, flattened row-local length K:
            int8 codes (K), f32 scales (K/32) and f32 scale * sum(codes) (K/32); K is a multiple
            of 32. ``i8r`` stores two more: int8 codes (K) of what rounding lost and their f32 scales
            (K/32), 256ths of the others, both 0 in blocks without outliers; its sums are those of
            both codes. ``u8r`` stores the same with codes 128 more, as u8.
            ``bf16`` stores the value rounded to bf16 (nearest even).
            ``kv`` stores into a paged pool (see ``KvLayout``) at the slot named by an i32 input.
        dtype: Element type of a plain output.
        slot_input: For ``kv``: number of the (i32, shape ()) input that holds the slot; negative
            slots are skipped, one beyond the pool is skipped and flagged.
        layout: For ``kv``: where an element lies. The stored value has shape (heads, dim) or its
            flattening.
        outlier: For ``i8r`` and ``u8r``: a block whose largest element is over this many times the row's
            root mean square keeps what rounding lost.
    """

    value: int
    kind: Literal["plain", "i8", "i8r", "u8r", "bf16", "kv"] = "plain"
    dtype: str = "f32"
    slot_input: int | None = None
    layout: KvLayout | None = None
    outlier: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgram:
    """A fused chain over independent rows: one row is one unit of work.

    Arguments of the kernel, in order: the inputs' pointers (an input with ``per_row`` false too), each
    ``indexed_by`` input's pointer followed by its row count (i64); the outputs' pointers (three for
    ``i8``: codes, scales, scaled sums; five for ``i8r`` and ``u8r``: residual codes and their scales
    too), each ``kv`` output's pointer followed by its pool's number of slots (i64); the number of rows
    (i64); the status pointer if anything is indexed or ``kv``.
    """

    inputs: tuple[RowInput, ...]
    nodes: tuple[RowNode, ...]
    outputs: tuple[RowOutput, ...]


# --- Contractions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """How a matrix (N, K) lies in device memory; chosen once per weight, serving every regime.

    Attributes:
        source: Stored type: a dtype name (``f32``, ``f16``, ``bf16``) or a packed format's name.
        interleave: Weight rows of a group; N is padded to it, gated pairs alternate by it.
        order: ``lanes``: the rows of a group stand side by side, k after k, for a host's vectors.
            ``rows``: rows stand one after the other, each a few planes, for GPUs.
    """

    source: str
    interleave: int = 16
    order: Literal["lanes", "rows"] = "lanes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """Pointwise work on an accumulator tile before it is stored.

    ``nodes`` number their operands: 0 is the accumulator (for a gated contraction 0 is the first
    half's and 1 the second half's), then ``inputs`` in order, then nodes. Only elementwise operations.

    Attributes:
        inputs: For each further operand, ``"column"`` for an (N,) f32 vector or ``"full"`` for a
            (rows, N) f32 matrix; a scalar is a ``literal`` node.
        nodes: The work; the last node (or operand 0 if there is none) is stored.
    """

    inputs: tuple[Literal["column", "full"], ...] = ()
    nodes: tuple[RowNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionRequest:
    """``y[m, n] = epilogue(sum over k of x[m, k] * w[n, k])``, one ascending chain per element.

    Arguments of the kernel, in order: weight pointer; activation pointers (one for f32 and bf16,
    three for i8: codes, scales, scaled sums; five for i8r and u8r: residual codes, residual scales too,
    whose products are a second ascending chain after the first, so that blocks of zeros change no bit
    and may be left out); epilogue input pointers; result pointer; rows M (i64),
    N (i64, results per row), K (i64), row stride of the result in elements (i64).
    A gated contraction reads a weight of 2N rows, in which ``interleave`` rows of the first half and
    ``interleave`` rows of the second half alternate, and stores N results.

    Attributes:
        is_wide: Whether the weight has so many rows (16384) that sums need not be cut along k to give
            every part of a device work; it may choose the order of sums.
        flight: How much of a weight a kernel for few rows has on its way at once, see
            ``contraction.flight_of``; results do not depend on it.
    """

    weight: WeightLayout
    activation: Activation
    regime: Regime
    epilogue: Epilogue = Epilogue()
    gated: bool = False
    result_dtype: str = "f32"
    is_wide: bool = False
    flight: Flight = "many"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequest:
    """Re-lay rows of a stored matrix into a ``WeightLayout``.

    Arguments of the kernel, in order: source pointer (stored rows), pointer to ``pack_table(layout)``
    (u16) if there is one, destination pointer, N (i64, rows of the source), K (i64), first
    destination group (i64), group step (i64: 1, or 2 for one half of a gated pair). One workgroup
    packs ``interleave`` rows; rows beyond N repeat the last one.
    """

    layout: WeightLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherRequest:
    """``y[t, :] = w[ids[t], :] * scale`` in f32, read through a ``WeightLayout``.

    Arguments of the kernel, in order: weight pointer, ids pointer (i32), result pointer, T (i64),
    N (i64), K (i64), scale (f32), status-word pointer. An id out of range is clamped and flagged.
    """

    layout: WeightLayout


# --- Attention ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Where an element of a paged pool lies.

    ``key``: [block][kv head][dim][token in block], so that scores of neighbouring keys fill a vector.
    ``value``: [block][kv head][token in block][dim].
    With ``pairs`` the two factors of neighbours that a product sums lie side by side, as instructions
    over pairs take them: ``key`` [block][kv head][dim / 2][token][2], ``value``
    [block][kv head][token / 2][dim][2]. Attention over such pools rounds scaled queries to bf16 and
    drops the bits of softmax weights that bf16 has not.

    Attributes:
        role: ``key`` or ``value``.
        num_kv_heads: Heads.
        head_dim: Elements of one head.
        block_size: Tokens of one block.
        dtype: Element type in the pool: ``f32``, ``f16`` or ``bf16``.
        pairs: Whether pairs lie side by side; bf16 alone, dims and block size are even.
    """

    role: Literal["key", "value"]
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    pairs: bool = False

    def __post_init__(self) -> None:
        if self.pairs:
            assert self.dtype == "bf16"
            assert self.head_dim % 2 == self.block_size % 2 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendRequest:
    """Attention of query tokens over paged keys and values.

    Arguments of the kernel, in order: queries (T, heads, key_dim) f32; key pool; value pool;
    positions (T) i32; rows (T) i32; block tables (R, B) i32; work list pointer; number of work items
    (i64); B (i64); sequence lengths (R) i32 if not ``causal``; sinks (heads) f32 if ``sinks``; alibi
    slopes (heads) f32 if ``alibi``; partial results pointer; P (i64); result (T, heads, value_dim) f32.
    A work item is 4 i32: first token, tokens (1 to ``query_tile``, all of one row, consecutive), first
    key, end key; it lies within one split, splits being the absolute multiples of ``split``. The
    keys of a token at position p are ``max(0, p - window + 1)..q``, where its last key q is p or, if
    not ``causal``, ``min(length of its row, p + window) - 1``; an item's bounds cover all of its
    tokens, so a kernel masks per token. The work list, made on the host each step, crosses with kv
    heads inside the kernel.
    A token's splits run from ``first = max(0, p - window + 1) // split`` to ``last = q // split``. With
    ``first == last`` the item that covers it stores the result (sink included). Otherwise each item
    stores a partial result: value_dim + 2 f32 (max, sum of exponentials, weighted values not divided)
    at ``((token * P + split - first) * heads + head) * (value_dim + 2)``, and the ``merge`` kernel of
    the same answer, which alone knows the base of the exponentials, combines them in ascending order,
    takes the sink in last and stores the result of these tokens alone. It is launched only if there
    are such tokens; its arguments: partial results pointer; P (i64); positions (T) i32; rows (T) i32
    and sequence lengths (R) i32 if not ``causal``; sinks (heads) f32 if ``sinks``; result; T (i64).
    An item that covers a token in no key (a window that ends before it) stores nothing for it.

    Attributes:
        scale: Factor on the scores.
        sinks: A further logit per head that takes part in the sum of exponentials alone.
        alibi: ``slope[head] * (key - position)`` is added to the scores, after the softcap.
        query_tile: Most tokens of a work item. Results do not depend on it, bit for bit.
        split: Keys of a split.
        window: Keys at or before ``position - window`` are masked, or None.
        softcap: Scores become ``softcap * tanh(score / softcap)``, or None.
        causal: Whether keys after a token's own are masked.
        result_dtype: ``f32``, or ``bf16`` where its only reader rounds to that (GPU kernels alone).
    """

    num_heads: int
    key: KvLayout
    value: KvLayout
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    query_tile: int = 1
    split: int = 256
    causal: bool = True
    result_dtype: str = "f32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxRequest:
    """Lowest id of the largest logit of each row.

    Two kernels, ``partial`` over chunks of columns and ``final``. Arguments of ``partial``: logits
    (L, N) f32, partial values, partial ids, L (i64), N (i64); of ``final``: partial values, partial
    ids, result ids (L) i32, L (i64), number of chunks (i64).
    """

    chunk: int = 4096


SAMPLE_FIELDS: tuple[str, ...] = (
    "logits_row",
    "slot",
    "flags",
    "scale",
    "reach",
    "top_k",
    "top_p",
    "min_weight",
    "seed_low",
    "seed_high",
    "choice",
    "position",
    "repetition",
    "inverse_repetition",
    "frequency",
    "presence",
)
"""The words (u32) that say how one row is sampled, in order.

``logits_row``: row of the logits. ``slot``: row of the tables that outlive a step. ``flags``: 1 draws
(otherwise the largest logit is taken), 2 counts its tokens and takes penalties. ``scale``: f32, log2(e)
/ temperature. ``reach``: f32, a distance from the largest logit beyond which every weight is 0.
``top_k``: tokens that stay, or 0. ``top_p``: share that stays, in units of 2**-32, or 0. ``min_weight``:
least weight that stays, at least 1. ``seed_low``, ``seed_high``, ``choice``, ``position``: key and
counter of the random number. ``repetition``, ``inverse_repetition``, ``frequency``, ``presence``: f32.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The next token of each of some rows, as its parameters ask.

    Four kernels, in order. ``best`` finds the largest logit of each chunk of columns, ``limits`` that of
    the row and what top-k and top-p keep, ``masses`` what the weights of each block of columns sum to,
    ``draw`` the token. Their arguments, in order (``params`` (S, fields) u32, S samples, ``stats``
    (S, 6) u32, ``sums`` (S, blocks, 4) u32, ``last`` (slots) i32, ``counts`` (slots, N) u32):

    - ``best``: logits (L, N) f32, counts, params, values (S, chunks) f32, ids (S, chunks) i32, L (i64),
      N (i64), S (i64), number of slots (i64).
    - ``limits``: logits, params, values, ids, stats, L, N, S, chunks (i64).
    - ``masses``: logits, params, stats, sums, L, N, S.
    - ``draw``: logits, params, stats, sums, last, counts, result ids (S) i32, result faults (S) i32,
      L, N, S, slots, blocks (i64).

    ``poot_kernelgen.reference.sample`` is the meaning. Weights are whole numbers, so their sums do not
    depend on how they are split, and a row's token depends on its logits and parameters alone. A row
    whose largest logit is no finite number, or that holds a NaN, gets a fault of 1 and some token.

    Attributes:
        counted: Whether rows may ask for penalties. ``best`` then changes their logits in place,
            and ``draw`` counts their tokens. Otherwise ``counts`` is left out of the arguments,
            ``slots`` with it in ``best``.
        chunk: Columns of a workgroup of ``best``.
        block: Columns of a workgroup of ``masses``.
    """

    counted: bool = False
    chunk: int = 4096
    block: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """``token_ids[places[f]] = last[slots[f]]``: tokens that the host has not seen go into a step.

    Arguments: token ids (T) i32, last (slots) i32, feeds (F, 2) i32 of (place, slot), T (i64), number of
    slots (i64), F (i64).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRequest:
    """What penalties know of a row at first: ``counts[slot]`` becomes zeros but for some ids.

    A count is 1 for a token that stands in prompt or answer, plus 2 for each time that it stands in the
    answer. Two kernels, ``clear`` and ``main``. Arguments of ``clear``: counts (slots, N) u32, slots
    (i64), N (i64), slot (i64); of ``main``: counts, entries (E, 2) u32 of (id, count), slots, N, slot,
    E (i64).
    """


Request = (
    RowProgram
    | ContractionRequest
    | PackRequest
    | GatherRequest
    | AttendRequest
    | ArgmaxRequest
    | SampleRequest
    | FeedRequest
    | CountRequest
)
