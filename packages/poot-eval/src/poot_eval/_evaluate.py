"""Evaluating a whole graph once: binding inputs, weights and states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from poot_core import DType, DTypeError, ShapeError, SymbolicDim
from poot_eval._interpreter import Interpreter
from poot_eval._packed import Array, Tensor
from poot_eval._static import StaticValues, Weights
from poot_graph_ir import Graph, Value

__all__ = ["EvalResult", "bind_inputs", "evaluate", "run_graph"]

# One step decodes each weight once, except tied ones: enough to keep those.
_ONE_STEP_CAP_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What a step computed.

    Attributes:
        outputs: By name.
        states: Every state after the step, by name.
    """

    outputs: dict[str, Array]
    states: dict[str, Array]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    weights: Weights,
    states: Mapping[str, Array] | None = None,
    *,
    check: bool = False,
) -> EvalResult:
    """Return outputs and new states of one step; nothing that is passed in is changed.

    Floats narrower than f32 are computed in f32 and rounded once per equation; products accumulate
    in f32 in the order of NumPy's BLAS.

    Args:
        graph: What to evaluate.
        inputs: Slots by name; symbolic dimensions are bound from their shapes.
        weights: Consts by name.
        states: States by name as they enter the step.
        check: Whether each result's shape and dtype are compared with its type.

    Raises:
        ShapeError: If an input, state or weight is missing or has another shape.
        DTypeError: If one has another dtype.
        VerifyError: If ``check`` finds a difference.
    """
    copies = {name: np.array(array, order="C") for name, array in (states or {}).items()}
    interpreter = Interpreter(check)
    static = StaticValues(graph, weights, interpreter, _ONE_STEP_CAP_BYTES)
    return run_graph(graph, inputs, copies, static, interpreter)


def run_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
    static: StaticValues,
    interpreter: Interpreter,
) -> EvalResult:
    """Return outputs and new states; the arrays of ``states`` may be overwritten."""
    sizes: dict[str, int] = {}
    environment: dict[int, Tensor] = {}
    bind_inputs("slot", graph.slots, inputs, sizes, environment)
    bind_inputs("state", graph.states, states, sizes, environment)
    owned = {value.id for value in graph.states.values()}
    results = [value for _, value in (*graph.outputs, *graph.updates)]
    with np.errstate(all="ignore"):
        interpreter.run(graph, static.dynamic, environment, results, sizes, owned, static.resolve)
        finals = {v.id: environment.get(v.id) for v in results}
        for value in results:
            if finals[value.id] is None:
                finals[value.id] = static.resolve(value)
    outputs = {name: _dense(finals[value.id]) for name, value in graph.outputs}
    after = dict(states)
    after.update({name: _dense(finals[value.id]) for name, value in graph.updates})
    return EvalResult(outputs, after)


def _dense(tensor: Tensor | None) -> Array:
    assert isinstance(tensor, np.ndarray)
    return tensor


def bind_inputs(
    what: str,
    declared: Mapping[str, Value],
    given: Mapping[str, Array],
    sizes: dict[str, int],
    environment: dict[int, Tensor],
) -> None:
    """Check arrays against declared values and learn the symbolic dimensions' sizes.

    Raises:
        ShapeError: If one is missing, unknown, or has another shape.
        DTypeError: If one has another dtype.
    """
    if unknown := sorted(given.keys() - declared.keys()):
        raise ShapeError(f"the graph has no {what} {unknown[0]!r}; it has {sorted(declared)}")
    for name, value in declared.items():
        if name not in given:
            raise ShapeError(f"{what} {name!r} of {value.type} is missing")
        array = given[name]
        dtype = value.dtype
        assert isinstance(dtype, DType)
        if array.dtype != dtype.numpy:
            raise DTypeError(f"{what} {name!r} is declared as {value.type}, got {array.dtype}")
        fits = array.ndim == len(value.shape)
        for dim, size in zip(value.shape, array.shape, strict=False):
            expected = sizes.setdefault(dim.name, size) if isinstance(dim, SymbolicDim) else dim
            fits = fits and expected == size
        if not fits:
            known = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
            raise ShapeError(
                f"{what} {name!r} is declared as {value.type}{f' with {known}' if known else ''}, "
                f"got shape {array.shape}"
            )
        environment[value.id] = array
