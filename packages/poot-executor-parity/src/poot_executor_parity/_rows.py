"""Cases of row programs: every pointwise primitive, reduction and view."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import T, bf16, f16, f32, i32
from poot_executor_parity._case import Case, Context
from poot_graph_ir import Tracer, ops

__all__ = ["ROW_CASES"]

Build = Callable[[Context], Tracer]


def _positive(x: Tracer) -> Tracer:
    return ops.abs(x) + 0.1


def _flag(flags: Tracer) -> Tracer:
    return flags.astype(f32)


_UNARY: dict[str, Build] = {
    "neg": lambda c: -c.x,
    "abs": lambda c: ops.abs(c.x),
    "sign": lambda c: ops.sign(c.x),
    "exp": lambda c: ops.exp(c.x),
    "log": lambda c: ops.log(_positive(c.x)),
    "sqrt": lambda c: ops.sqrt(_positive(c.x)),
    "rsqrt": lambda c: ops.rsqrt(_positive(c.x)),
    "sin": lambda c: ops.sin(c.x * 50.0),
    "cos": lambda c: ops.cos(c.x * 50.0),
    "tanh": lambda c: ops.tanh(c.x),
    "erf": lambda c: ops.erf(c.x),
    "floor": lambda c: ops.floor(c.x * 3.0),
    "convert i32": lambda c: (c.x * 9.0).astype(i32).astype(f32),
    "convert bf16": lambda c: c.x.astype(bf16).astype(f32),
    "convert f16": lambda c: c.x.astype(f16).astype(f32),
}
_BINARY: dict[str, Build] = {
    "add": lambda c: c.x + c.x * 0.5,
    "sub": lambda c: c.x - ops.abs(c.x),
    "mul": lambda c: c.x * ops.exp(c.x),
    "div": lambda c: c.x / _positive(c.x),
    "pow": lambda c: ops.pow(_positive(c.x), c.x),
    "maximum": lambda c: ops.maximum(c.x, 0.3),
    "minimum": lambda c: ops.minimum(c.x, -c.x),
    "equal": lambda c: _flag(ops.equal(ops.floor(c.x), 0.0)),
    "not_equal": lambda c: _flag(ops.not_equal(ops.floor(c.x), 0.0)),
    "less": lambda c: _flag(c.x < 0.2),
    "less_equal": lambda c: _flag(c.x <= 0.2),
    "greater": lambda c: _flag(c.x > 0.2),
    "greater_equal": lambda c: _flag(c.x >= 0.2),
    "logical": lambda c: _flag(
        ops.logical_or(ops.logical_and(c.x > 0.0, c.x < 1.0), ops.logical_not(c.x > -1.0))
    ),
    "select": lambda c: ops.select(c.x > 0.0, c.x, c.x * 0.1),
    "integer add": lambda c: (c.slots.positions[:, None] + 3).astype(f32) + c.x,
}
_VIEWS: dict[str, Build] = {
    "slice": lambda c: c.x[:, 5:37],
    "slice strided": lambda c: c.x[:, 1::2],
    "reshape transpose": lambda c: ops.transpose(c.x.reshape(T, 4, 16), (0, 2, 1)).reshape(T, 64),
    "concatenate": lambda c: ops.concatenate([c.x[:, 40:], c.x * 2.0, c.x[:, :3]]),
    "broadcast middle": lambda c: (c.x.reshape(T, 4, 16) * c.x.reshape(T, 4, 16)[:, :1]).reshape(
        T, 64
    ),
    "iota": lambda c: c.x + c.builder.iota((64,), 0, f32),
    "pad": lambda c: ops.pad(c.x, (0, 3), (0, 5), 0.25),
    "halves swapped": lambda c: ops.concatenate([-c.x[:, 32:], c.x[:, :32]]) * c.x,
    "interleaved": lambda c: ops.concatenate(
        [part.reshape(T, 32, 1) for part in (c.x[:, 1::2], c.x[:, ::2])]
    ).reshape(T, 64),
}
_REDUCE: dict[str, Build] = {
    "sum": lambda c: c.x * c.x.sum(-1, keepdims=True),
    "max": lambda c: c.x - c.x.max(-1, keepdims=True),
    "min": lambda c: c.x - ops.reduce_min(c.x, -1, keepdims=True),
    "sum of heads": lambda c: c.x.reshape(T, 4, 16).sum(-1),
    "sum over heads": lambda c: c.x.reshape(T, 4, 16).sum(1),
    "max over both": lambda c: c.x + c.x.reshape(T, 4, 16).max((1, 2)).reshape(T, 1),
    "softmax": lambda c: ops.softmax(c.x),
    "rms norm": lambda c: ops.rms_norm(c.x, c.declare("w", (64,), f32), 1e-5),
    "rms norm bf16": lambda c: ops.rms_norm(c.x, c.declare("w", (64,), bf16), 1e-5, 1.0),
    "layer norm": lambda c: ops.layer_norm(
        c.x, c.declare("w", (64,), f32), c.declare("b", (64,), f16), 1e-5
    ),
    "norm of heads": lambda c: ops.rms_norm(
        c.x.reshape(T, 4, 16), c.declare("w", (16,), f32), 1e-6
    ).reshape(T, 64),
    "silu": lambda c: ops.silu(c.x),
    "gelu": lambda c: ops.gelu(c.x),
    "gelu tanh": lambda c: ops.gelu_tanh(c.x),
    "softcap": lambda c: ops.softcap(c.x, 2.0),
}


def _odd_width(c: Context) -> Tracer:
    return ops.rms_norm(c.x, c.declare("w", (75,), f32), 1e-5) * ops.exp(c.x)


ROW_CASES: tuple[Case, ...] = (
    *(
        Case(name=f"{group}/{name}", build=build)
        for group, cases in (
            ("unary", _UNARY),
            ("binary", _BINARY),
            ("view", _VIEWS),
            ("reduce", _REDUCE),
        )
        for name, build in cases.items()
    ),
    Case(name="reduce/odd width", build=_odd_width, width=75),
    Case(name="reduce/wide", build=lambda c: ops.softmax(c.x), width=1536),
)
