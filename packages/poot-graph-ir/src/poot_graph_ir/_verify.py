"""The verifier: types, single assignment, dominance, storage classes, donation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poot_core import DTypeError, ShapeError, SymbolicDim, VerifyError
from poot_graph_ir._analysis import donated_inputs
from poot_graph_ir._graph import Body, Equation, Graph, Value
from poot_graph_ir._printer import format_equation
from poot_graph_ir._types import Storage
from poot_graph_ir.primitives import PRIMITIVES

__all__ = ["verify"]


def verify(graph: Graph, stage: str = "trace") -> None:
    """Check every invariant of a graph.

    Args:
        graph: What to check.
        stage: Name of the pass that made it, for the message.

    Raises:
        VerifyError: If one does not hold; names the stage and the equation.
    """
    _Verifier(stage).graph(graph)


class _Verifier:
    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._bodies: set[int] = set()
        self._donations: dict[int, tuple[int, ...]] = {}

    def _fail(self, what: str, equation: Equation | None = None) -> VerifyError:
        where = "" if equation is None else f"\n  in {format_equation(equation)}"
        return VerifyError(
            f"after {self._stage!r}: {what}{where}",
            stage=self._stage,
            equation=None if equation is None else equation.op,
        )

    def graph(self, graph: Graph) -> None:
        names: set[str] = set()
        allowed = {Storage.CONST, Storage.SLOT, Storage.STATE}
        for value in graph.inputs:
            if value.storage not in allowed or not value.name or value.name in names:
                raise self._fail(f"input {value} {value.name!r} is no input or is named twice")
            names.add(value.name)
            symbolic = any(isinstance(dim, SymbolicDim) for dim in value.shape)
            if value.storage is Storage.CONST and symbolic:
                raise self._fail(f"const {value.name!r} of {value.type} has a symbolic extent")
        results = [value for _, value in (*graph.outputs, *graph.updates)]
        self._equations(graph.inputs, graph.equations, results, None)
        states = graph.states
        for name, value in graph.updates:
            if name not in states or states[name].type != value.type:
                raise self._fail(f"update {name!r} with {value.type} names no state of that type")
        for title, named in (("output", graph.outputs), ("update", graph.updates)):
            if len({name for name, _ in named}) != len(named):
                raise self._fail(f"an {title} is named twice")

    def _equations(
        self,
        inputs: Sequence[Value],
        equations: Sequence[Equation],
        results: Iterable[Value],
        region: Equation | None,
    ) -> None:
        known: dict[int, Value] = {}
        given: dict[int, Equation] = {}
        for value in inputs:
            if value.id in known:
                raise self._fail(f"{value} is defined twice")
            known[value.id] = value
        for equation in equations:
            for value in equation.inputs:
                self._use(value, known, given, equation)
            self._types(equation)
            for operand in donated_inputs(equation, self._donations):
                value = equation.inputs[operand]
                if value.storage in {Storage.CONST, Storage.SLOT}:
                    raise self._fail(f"{value.storage.value} {value} is written to", equation)
                if sum(other.id == value.id for other in equation.inputs) > 1:
                    raise self._fail(f"{value} is given up and read", equation)
                given[value.id] = equation
            for value in equation.outputs:
                if value.id in known or value.storage is not Storage.COMPUTED:
                    raise self._fail(f"{value} is defined twice or is not computed", equation)
                known[value.id] = value
        for value in results:
            self._use(value, known, given, region)

    def _use(
        self,
        value: Value,
        known: dict[int, Value],
        given: dict[int, Equation],
        equation: Equation | None,
    ) -> None:
        if known.get(value.id) != value:
            raise self._fail(f"{value} is used but is not defined before, or differs", equation)
        if value.id in given:
            raise self._fail(
                f"{value} {value.name!r} is used after {given[value.id].op!r} was given it to "
                "overwrite; use the result",
                equation,
            )

    def _types(self, equation: Equation) -> None:
        types = tuple(value.type for value in equation.outputs)
        if equation.body is not None:
            if equation.op in PRIMITIVES:
                raise self._fail("a region has the name of a primitive", equation)
            self._body(equation.body, equation)
            expected = tuple(value.type for value in equation.body.outputs)
        else:
            primitive = PRIMITIVES.get(equation.op)
            if primitive is None:
                raise self._fail("there is no such primitive", equation)
            try:
                inputs = [value.type for value in equation.inputs]
                expected = primitive.infer(inputs, equation.attributes)
            except (ShapeError, DTypeError) as error:
                raise self._fail(error.message, equation) from error
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise self._fail(f"an attribute is malformed: {error!r}", equation) from error
        if types != expected:
            shown = ", ".join(map(str, expected))
            raise self._fail(f"the results should be {shown}", equation)

    def _body(self, body: Body, equation: Equation) -> None:
        given = [value.type for value in equation.inputs]
        if [value.type for value in body.inputs] != given:
            raise self._fail("the body takes other types", equation)
        if id(body) not in self._bodies:
            if any(value.storage is not Storage.ARGUMENT for value in body.inputs):
                raise self._fail("the body's inputs are no arguments", equation)
            self._equations(body.inputs, body.equations, body.outputs, equation)
            self._bodies.add(id(body))
