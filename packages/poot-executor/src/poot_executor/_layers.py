"""Planning repeated layers once: a shorter graph is planned, then its launches are repeated.

Of a run of equal layers (equal structure, fed by the layer before in the same way) the first three and
the last are planned together with all else. The launches of the second and third must be the same
but for names; the third's are then repeated, with the names of each further layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from poot_executor._planned import Operand, PlannedLaunch, Temp
from poot_executor._weights import Matrix, Vector
from poot_graph_ir import Equation, Graph, Layer, Storage, Value, split_layers

__all__ = ["Run", "collapse", "expand"]

_SHORTEST = 5  # first, two to compare, one repeated, last


@dataclass(frozen=True, slots=True)
class Run:
    """Layers that the planner sees as four.

    Attributes:
        first: Number of the first layer of the run.
        count: Layers of the run.
        names: For each layer of the run the names of its weights and states, in equal order.
    """

    first: int
    count: int
    names: tuple[tuple[str, ...], ...]

    @property
    def compared(self) -> int:
        """Number of the layer whose launches must equal those of the template."""
        return self.first + 1

    @property
    def template(self) -> int:
        """Number of the layer whose launches are repeated."""
        return self.first + 2

    @property
    def last(self) -> int:
        """Number of the run's last layer."""
        return self.first + self.count - 1

    def renaming(self, source: int, target: int) -> Renaming:
        """Return what turns launches of layer ``source`` into those of layer ``target``.

        A launch may read the next layer's weights too (a norm that follows a residual sum). After
        the template the planner saw the last layer.
        """
        following = self.last if source == self.template else source + 1
        after = self.last if source == self.compared else target + 1
        layers = {source: target, following: after}
        names: dict[str, str] = {}
        for old, new in layers.items():
            names.update(
                zip(self.names[old - self.first], self.names[new - self.first], strict=True)
            )
        return Renaming(names, layers)


@dataclass(frozen=True, slots=True)
class Renaming:
    """New names of weights and states, and new numbers of layers."""

    names: Mapping[str, str]
    layers: Mapping[int, int]


def collapse(graph: Graph) -> tuple[Graph, tuple[Run, ...]]:
    """Return the graph without the layers that only repeat, and the runs that they belong to."""
    layers = split_layers(graph)
    if sorted(layers) != list(range(len(layers))):
        return graph, ()
    makers = {v.id: (n, i) for n, layer in layers.items() for i, v in enumerate(layer.outputs)}
    keys = [_key(layers[n], makers) for n in range(len(layers))]
    runs: list[Run] = []
    start = 0
    for end in range(1, len(keys) + 1):
        if end < len(keys) and keys[end] == keys[start]:
            continue
        if end - start >= _SHORTEST and _is_chain(graph, layers, makers, start, end):
            names = tuple(_names(layers[n]) for n in range(start, end))
            runs.append(Run(start, end - start, names))
        start = end
    return (_without(graph, layers, runs), tuple(runs)) if runs else (graph, ())


def _key(layer: Layer, makers: Mapping[int, tuple[int, int]]) -> Any:
    """Return what two layers share if one may stand for the other."""
    sources: list[Any] = []
    for value in layer.inputs:
        if value.id in makers:
            number, index = makers[value.id]
            sources.append((layer.number - number, index))
        elif value.storage is Storage.COMPUTED:
            sources.append(value.id)
        else:
            sources.append(value.storage)
    return layer.hash, tuple(sources)


def _is_chain(
    graph: Graph,
    layers: Mapping[int, Layer],
    makers: Mapping[int, tuple[int, int]],
    start: int,
    end: int,
) -> bool:
    """Whether each layer of start..end is read by the next one alone (states aside)."""
    states = {value.id for _, value in graph.updates}
    for _, value in graph.outputs:
        if value.id in makers and start <= makers[value.id][0] < end - 1:
            return False
    for equation in graph.equations:
        reader = equation.scope.layer
        for value in equation.inputs:
            found = makers.get(value.id)
            if found is None or not start <= found[0] < end - 1 or value.id in states:
                continue
            if reader is None or reader - found[0] not in {0, 1}:
                return False
    return True


def _names(layer: Layer) -> tuple[str, ...]:
    named = {Storage.CONST, Storage.STATE}
    return tuple(value.name for value in layer.inputs if value.storage in named)


def _without(graph: Graph, layers: Mapping[int, Layer], runs: list[Run]) -> Graph:
    dropped: set[int] = set()
    mapping: dict[int, Value] = {}
    for run in runs:
        dropped.update(range(run.template + 1, run.last))
        before_last, template = layers[run.last - 1], layers[run.template]
        for old, new in zip(before_last.outputs, template.outputs, strict=True):
            mapping[old.id] = new
    equations: list[Equation] = []
    gone: set[int] = set()
    for equation in graph.equations:
        if equation.scope.layer in dropped:
            gone.update(value.id for value in equation.outputs)
            continue
        if any(value.id in mapping for value in equation.inputs):
            inputs = tuple(mapping.get(value.id, value) for value in equation.inputs)
            equation = replace(equation, inputs=inputs)
        equations.append(equation)
    updates = tuple((name, value) for name, value in graph.updates if value.id not in gone)
    return replace(graph, equations=tuple(equations), updates=updates)


def expand(
    launches: list[PlannedLaunch], temps: list[Temp], runs: tuple[Run, ...]
) -> list[PlannedLaunch] | None:
    """Return the launches of all layers, or None if a run's layers were not planned alike.

    Args:
        launches: Those of the collapsed graph.
        temps: Intermediates by id; those of repeated layers are appended.
        runs: What was left out.
    """
    for run in runs:
        repeated = _repeat(launches, temps, run)
        if repeated is None:
            return None
        launches = repeated
    return launches


def _repeat(
    launches: list[PlannedLaunch], temps: list[Temp], run: Run
) -> list[PlannedLaunch] | None:
    owner = _owners(launches)
    compared = [x for x in launches if x.layer == run.compared]
    template = [x for x in launches if x.layer == run.template]
    if not _are_alike(compared, template, owner, run):
        return None
    own = {t for t, layer in owner.items() if layer == run.template}
    before = {t for t, layer in owner.items() if layer == run.compared}
    # Position by position, as _are_alike proved: what the template reads of the layer before.
    successor = dict(_temp_pairs(compared, template))
    previous = {t: t for t in own}
    result: list[PlannedLaunch] = []
    is_after = False
    for launch in launches:
        if launch.layer == run.template:
            own_names = run.renaming(run.template, run.template)
            result.append(_renamed(launch, {}, own_names, run.template))
        else:
            result.append(_with_temps(launch, previous) if is_after else launch)
        if launch is not template[-1]:
            continue
        is_after = True
        for number in range(run.template + 1, run.last):
            fresh: dict[int, int] = {}
            for temp in sorted(own):
                temps.append(temps[temp])
                fresh[temp] = len(temps) - 1
            table = dict(fresh)
            for temp in before:
                if temp in successor:
                    table[temp] = previous[successor[temp]]
            renaming = run.renaming(run.template, number)
            result.extend(_renamed(x, table, renaming, number) for x in template)
            previous = fresh
    return result


def _owners(launches: list[PlannedLaunch]) -> dict[int, int | None]:
    """Return the layer of the launch that first touches each temp: it makes it."""
    owner: dict[int, int | None] = {}
    for launch in launches:
        for temp in _temps(launch):
            owner.setdefault(temp, launch.layer)
    return owner


def _temps(launch: PlannedLaunch) -> Iterator[int]:
    for operand in launch.operands:
        if operand.kind == "temp":
            assert isinstance(operand.value, int)
            yield operand.value


def _temp_pairs(a: list[PlannedLaunch], b: list[PlannedLaunch]) -> Iterator[tuple[int, int]]:
    for x, y in zip(a, b, strict=True):
        yield from zip(_temps(x), _temps(y), strict=True)


def _are_alike(
    compared: list[PlannedLaunch],
    template: list[PlannedLaunch],
    owner: Mapping[int, int | None],
    run: Run,
) -> bool:
    """Whether the template is what renaming makes of the compared layer."""
    if not template or len(compared) != len(template):
        return False
    renaming = run.renaming(run.compared, run.template)
    for x, y in zip(compared, template, strict=True):
        renamed = _renamed(x, {}, renaming, run.template)
        same = (renamed.requests, renamed.select, renamed.role, renamed.symbol) == (
            y.requests, y.select, y.role, y.symbol,
        )  # fmt: skip
        if not same or len(renamed.operands) != len(y.operands):
            return False
        for left, right in zip(renamed.operands, y.operands, strict=True):
            if left.kind != right.kind or (left.kind != "temp" and left.value != right.value):
                return False
    forward: dict[int, int] = {}
    for left, right in _temp_pairs(compared, template):
        if forward.setdefault(left, right) != right:
            return False
        from_layer, to_layer = owner[left], owner[right]
        inner = (from_layer, to_layer) == (run.compared, run.template)
        chained = (from_layer, to_layer) == (run.first, run.compared)
        shared = left == right and from_layer is None
        if not (inner or chained or shared):
            return False
    return True


def _with_temps(launch: PlannedLaunch, table: Mapping[int, int]) -> PlannedLaunch:
    operands = tuple(
        Operand("temp", table.get(operand.value, operand.value))
        if operand.kind == "temp" and isinstance(operand.value, int)
        else operand
        for operand in launch.operands
    )
    return replace(launch, operands=operands)


def _renamed(
    launch: PlannedLaunch, temps: Mapping[int, int], renaming: Renaming, layer: int
) -> PlannedLaunch:
    names = renaming.names

    def rename(operand: Operand) -> Operand:
        value = operand.value
        if operand.kind == "temp":
            assert isinstance(value, int)
            return Operand("temp", temps.get(value, value))
        if isinstance(value, Matrix):
            parts = tuple(replace(p, name=names.get(p.name, p.name)) for p in value.parts)
            return Operand("matrix", replace(value, parts=parts))
        if isinstance(value, Vector):
            return Operand("vector", replace(value, name=names.get(value.name, value.name)))
        if operand.kind == "state":
            assert isinstance(value, str)
            return Operand("state", names.get(value, value))
        return operand

    operands = tuple(rename(operand) for operand in launch.operands)
    label = _relabel(launch.label, renaming)
    return replace(launch, operands=operands, label=label, layer=layer)


def _relabel(label: str, renaming: Renaming) -> str:
    place, _, what = label.partition(":")
    scopes = [
        f"layer.{renaming.layers.get(int(part[6:]), part[6:])}"
        if part.startswith("layer.") and part[6:].isdigit()
        else part
        for part in place.split("/")
    ]
    weights = [renaming.names.get(name, name) for name in what.split("+")]
    return ":".join(filter(None, ("/".join(scopes), "+".join(weights))))
