"""Small decoders traced by hand, with random weights: every shape of model that families have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from poot_core import bf16, f32
from poot_executor import EngineOptions, StepInputs
from poot_graph_ir import Builder, TraceOptions, ops
from poot_quant import encode, format_by_name, random_blocks


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Sizes and choices of a decoder; defaults are llama's."""

    width: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    layers: int = 2
    vocab: int = 320
    formats: tuple[str, ...] = ("f32",)
    norm: str = "rms"
    mlp: str = "gated"
    bias: bool = False
    fused_qkv: bool = False
    transposed: bool = False
    positions: str = "rope"
    interleaved: bool = False
    window: int | None = None
    softcap: float | None = None
    post_norms: bool = False
    parallel: bool = False
    sinks: bool = False
    tied: bool = True
    residual_scale: float | None = None


class Weights:
    """Random weights by name, made when they are declared; has the shape of a weight source."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.stored: dict[str, np.ndarray] = {}
        self.released: list[str] = []

    def raw(self, name: str) -> np.ndarray:
        return self.stored[name].reshape(-1).view(np.uint8)

    def release(self, name: str) -> None:
        self.released.append(name)

    def array(self, name: str) -> np.ndarray:
        """What the oracle reads: dense arrays as they are, packed ones as bytes."""
        return self.stored[name]


@dataclass
class Model:
    """A tiny decoder with its weights."""

    tiny: Tiny
    weights: Weights
    dtypes: dict[str, object] = field(default_factory=dict)

    def declare(self, builder, name, shape, source):
        if source == "f32":
            dtype = f32
        elif source == "bf16":
            dtype = bf16
        else:
            dtype = format_by_name(source)
        if name not in self.weights.stored:
            scale = 1 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.3
            values = self.weights.rng.standard_normal(shape).astype(np.float32) * scale
            if source in {"f32", "bf16"}:
                stored = values.astype(dtype.numpy)
            elif source in {"Q4_0", "Q4_1", "Q5_0", "Q8_0"}:
                stored = encode(dtype, values)
            else:
                stored = random_blocks(dtype, shape, self.weights.rng, scale=float(scale))
            self.weights.stored[name] = stored
        return builder.const(name, shape, dtype)

    def trace(self, options: TraceOptions):  # noqa: C901 - one description of every family
        t = self.tiny
        b = Builder("tiny")
        slots = b.step_slots(options.max_blocks_per_row)

        def weight(name, n, k, which=0):
            return self.declare(b, name, (n, k), t.formats[which % len(t.formats)])

        def vector(name, n):
            return self.declare(b, name, (n,), "f32" if "f32" in t.formats else "bf16")

        def linear(x, name, n, k, which=0):
            bias = vector(f"{name}.bias", n) if t.bias else None
            if t.transposed:
                w = self.declare(b, f"{name}.weight", (k, n), t.formats[0])
                y = ops.dot_general(x, ops.to_f32(w), contract=(-1, 0))
                return y if bias is None else y + ops.to_f32(bias)
            return ops.linear(x, weight(f"{name}.weight", n, k, which), bias)

        def norm(x, name):
            if t.norm == "rms":
                return ops.rms_norm(x, vector(f"{name}.weight", t.width), 1e-5)
            scale, shift = vector(f"{name}.weight", t.width), vector(f"{name}.bias", t.width)
            return ops.layer_norm(x, scale, shift, 1e-5)

        q_width, kv_width = t.heads * t.head_dim, t.kv_heads * t.head_dim
        embedding = weight("embed", t.vocab, t.width)
        x = ops.embedding(embedding, slots.token_ids)
        tables, slopes = None, None
        if t.positions == "rope":
            inverse = 100.0 ** -(np.arange(0, t.head_dim, 2) / t.head_dim)
            tables = ops.rope_tables(slots.positions, inverse)
        elif t.positions == "learned":
            places = self.declare(b, "places", (128, t.width), t.formats[0])
            x = x + ops.embedding(places, slots.positions)
        else:
            slopes = b.literal(ops.alibi_slopes(t.heads))

        def attention(x, i):
            if t.fused_qkv:
                qkv = linear(x, f"{i}.qkv", q_width + 2 * kv_width, t.width)
                q, k, v = ops.split(qkv, (q_width, kv_width, kv_width))
            else:
                q = linear(x, f"{i}.q", q_width, t.width)
                k = linear(x, f"{i}.k", kv_width, t.width)
                v = linear(x, f"{i}.v", kv_width, t.width, 1)
            q = ops.split_heads(q, t.heads)
            k, v = (ops.split_heads(each, t.kv_heads) for each in (k, v))
            if tables is not None:
                q, k = (ops.apply_rope(each, tables, interleaved=t.interleaved) for each in (q, k))
            keys, values = b.kv_states(i, t.kv_heads, t.head_dim, options)
            new_keys = ops.kv_write(keys, k, slots.slot_mapping)
            new_values = ops.kv_write(values, v, slots.slot_mapping)
            b.update_state(keys, new_keys)
            b.update_state(values, new_values)
            window = t.window if i % 2 == 0 else None
            mixed = ops.attend(
                q, new_keys, new_values, slots.positions, slots.rows, slots.block_tables,
                scale=t.head_dim**-0.5, window=window, softcap=t.softcap,
                sinks=vector(f"{i}.sinks", t.heads) if t.sinks else None, alibi_slopes=slopes,
            )  # fmt: skip
            return linear(ops.merge_heads(mixed), f"{i}.o", t.width, q_width)

        def mlp(x, i):
            if t.mlp == "gated":
                gate = linear(x, f"{i}.gate", t.inner, t.width)
                up = linear(x, f"{i}.up", t.inner, t.width)
                hidden = ops.swiglu(gate, up)
            elif t.mlp == "fused":
                gate, up = ops.split(
                    linear(x, f"{i}.gate_up", 2 * t.inner, t.width), (t.inner,) * 2
                )
                hidden = up * ops.gelu_tanh(gate)
            else:
                hidden = ops.gelu(linear(x, f"{i}.in", t.inner, t.width))
            return linear(hidden, f"{i}.down", t.width, t.inner, 1)

        def joined(x, y, name):
            if t.post_norms:
                y = norm(y, name)
            if t.residual_scale is not None:
                y = y * t.residual_scale
            return x + y

        for i in range(t.layers):
            with b.layer(i):
                if t.parallel:
                    x = x + attention(norm(x, f"{i}.a"), i) + mlp(norm(x, f"{i}.m"), i)
                    continue
                x = joined(x, attention(norm(x, f"{i}.a"), i), f"{i}.pa")
                x = joined(x, mlp(norm(x, f"{i}.m"), i), f"{i}.pm")
        x = norm(ops.gather(x, slots.logit_positions), "final")
        head = embedding if t.tied else weight("head", t.vocab, t.width, 1)
        logits = ops.linear(x, head)
        if t.softcap is not None:
            logits = ops.softcap(logits, 30.0)
        b.output("logits", logits)
        return b.finish()


def make(seed: int = 0, **choices) -> Model:
    """Return a decoder; its weights are made by the first trace."""
    return Model(Tiny(**choices), Weights(seed))


OPTIONS = EngineOptions(
    backend="reference",
    precision="f32",
    context_tokens=64,
    max_sequences=4,
    max_step_tokens=64,
    block_size=8,
    num_blocks=24,
)


@dataclass
class Row:
    """A sequence of the tests: its blocks and how far it has been computed."""

    blocks: list[int]
    tokens: list[int]
    computed: int = 0


def step_of(rows: list[Row], counts: list[int], options: EngineOptions = OPTIONS) -> StepInputs:
    """Return the step that computes ``counts`` further tokens of each row; wants the last of each."""
    size = options.block_size
    ids, positions, numbers, slots, wanted, lengths = [], [], [], [], [], []
    tables = np.zeros((len(rows), options.max_blocks_per_row), np.int32)
    for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
        tables[number, : len(row.blocks)] = row.blocks
        for position in range(row.computed, row.computed + count):
            ids.append(row.tokens[position])
            positions.append(position)
            numbers.append(number)
            slots.append(row.blocks[position // size] * size + position % size)
        row.computed += count
        lengths.append(row.computed)
        wanted.append(len(ids) - 1)
    return StepInputs(
        token_ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        rows=np.array(numbers, np.int32),
        sequence_lengths=np.array(lengths, np.int32),
        block_tables=tables,
        slot_mapping=np.array(slots, np.int32),
        logit_positions=np.array(wanted, np.int32),
    )


def some_rows(seed: int = 1) -> list[Row]:
    """Return three rows of 40 random tokens over disjoint blocks in no order."""
    rng = np.random.default_rng(seed)
    blocks = rng.permutation(24).tolist()
    return [Row(blocks[8 * i : 8 * i + 8], rng.integers(0, 320, 40).tolist()) for i in range(3)]
