"""Running equations one by one: values are freed after their last use, donated states overwritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poot_core import DType, VerifyError, bind_shape
from poot_eval._packed import Array, Packed, Tensor
from poot_eval.rules import RULES, Call
from poot_graph_ir import Body, Equation, TensorType, Value, is_packed

__all__ = ["Interpreter", "Resolve", "evaluate_equation"]

Resolve = Callable[[Value], Tensor]


@dataclass(frozen=True, slots=True)
class _Schedule:
    """Equations with what each of them frees, and the values that are used exactly once."""

    equations: tuple[Equation, ...]
    frees: tuple[tuple[int, ...], ...]
    used_once: frozenset[int]


@dataclass
class Interpreter:
    """Evaluates equation lists, and remembers how each list is scheduled.

    Attributes:
        check: Whether shape and dtype of each result are compared with the equation's.
    """

    check: bool = False
    _schedules: dict[int, tuple[object, _Schedule]] = field(
        default_factory=dict[int, "tuple[object, _Schedule]"]
    )

    def run(
        self,
        owner: object,
        equations: Sequence[Equation],
        environment: dict[int, Tensor],
        results: Iterable[Value],
        sizes: Mapping[str, int],
        owned: set[int],
        resolve: Resolve | None = None,
    ) -> None:
        """Evaluate equations in order; ``environment`` then holds their ``results``.

        Args:
            owner: Graph or body that the equations belong to; the schedule is kept for it.
            equations: What to evaluate.
            environment: Value id to array; inputs on entry.
            results: Values to keep.
            sizes: Extent of each symbolic dimension.
            owned: Ids of values whose arrays may be overwritten once they are dead; kept up to date.
            resolve: Where operands come from that the environment lacks (weights).
        """
        schedule = self._schedule(owner, equations, results)
        for equation, frees in zip(schedule.equations, schedule.frees, strict=True):
            operands = [
                environment[value.id]
                if resolve is None or value.id in environment
                else resolve(value)
                for value in equation.inputs
            ]
            # A value used once has no view that outlives the equation, so it may be overwritten.
            donated = [v.id in owned and v.id in schedule.used_once for v in equation.inputs]
            self._step(equation, operands, donated, environment, sizes, owned)
            del operands
            for identity in frees:
                environment.pop(identity, None)

    def _step(
        self,
        equation: Equation,
        operands: list[Tensor],
        donated: list[bool],
        environment: dict[int, Tensor],
        sizes: Mapping[str, int],
        owned: set[int],
    ) -> None:
        if equation.body is None:
            call = Call(operands, equation.attributes, sizes, bool(donated) and donated[0])
            outputs = RULES[equation.op](call)
            if equation.op == "scatter":
                owned.update(value.id for value in equation.outputs)
        else:
            outputs, kept = self._run_body(equation.body, operands, donated, sizes)
            owned.update(v.id for v, own in zip(equation.outputs, kept, strict=True) if own)
        for value, output in zip(equation.outputs, outputs, strict=True):
            if self.check:
                _check(equation, value.type, output, sizes)
            environment[value.id] = output

    def _run_body(
        self, body: Body, operands: list[Tensor], donated: list[bool], sizes: Mapping[str, int]
    ) -> tuple[tuple[Tensor, ...], list[bool]]:
        environment = {v.id: x for v, x in zip(body.inputs, operands, strict=True)}
        owned = {v.id for v, own in zip(body.inputs, donated, strict=True) if own}
        self.run(body, body.equations, environment, body.outputs, sizes, owned)
        outputs = tuple(environment[value.id] for value in body.outputs)
        return outputs, [value.id in owned for value in body.outputs]

    def _schedule(
        self, owner: object, equations: Sequence[Equation], results: Iterable[Value]
    ) -> _Schedule:
        # Keyed by identity (hashing a graph walks it); the owner is kept alive beside the schedule.
        found = self._schedules.get(id(owner))
        if found is None:
            found = self._schedules[id(owner)] = (owner, _make_schedule(equations, results))
        return found[1]


def _make_schedule(equations: Sequence[Equation], results: Iterable[Value]) -> _Schedule:
    kept = {value.id for value in results}
    uses = Counter(value.id for equation in equations for value in equation.inputs)
    last: dict[int, int] = {}
    for number, equation in enumerate(equations):
        for value in (*equation.inputs, *equation.outputs):
            last[value.id] = number
    frees: list[list[int]] = [[] for _ in equations]
    for identity, number in last.items():
        if identity not in kept:
            frees[number].append(identity)
    once = frozenset(i for i, count in uses.items() if count == 1 and i not in kept)
    return _Schedule(tuple(equations), tuple(map(tuple, frees)), once)


def _check(equation: Equation, kind: TensorType, got: Tensor, sizes: Mapping[str, int]) -> None:
    shape = bind_shape(kind.shape, sizes)
    if is_packed(kind.dtype):
        fits = isinstance(got, Packed) and got.format is kind.dtype and got.shape == shape
    else:
        assert isinstance(kind.dtype, DType)
        fits = not isinstance(got, Packed) and got.dtype == kind.dtype.numpy and got.shape == shape
    if not fits:
        found = got.format.name if isinstance(got, Packed) else got.dtype
        raise VerifyError(
            f"{equation.op!r} at {equation.location} gave {found} of shape {got.shape}, "
            f"its type says {kind}",
            equation=equation.op,
        )


def evaluate_equation(
    equation: Equation, operands: Sequence[Array], sizes: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """Return the results of one equation on dense operands: what constant folding calls."""
    environment: dict[int, Any] = {v.id: x for v, x in zip(equation.inputs, operands, strict=True)}
    with np.errstate(all="ignore"):
        interpreter = Interpreter()
        interpreter.run(equation, (equation,), environment, equation.outputs, sizes or {}, set())
    return tuple(environment[value.id] for value in equation.outputs)
