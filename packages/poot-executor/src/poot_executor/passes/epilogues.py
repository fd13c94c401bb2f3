"""Pair gates with their products, stack products of one input, and take pointwise work along."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from poot_executor._absorb import Absorbed, absorb
from poot_executor._rewrite import Links, attribute, fresh_values, substitute
from poot_executor._weights import Matrix, MatrixPart
from poot_graph_ir import Equation, Graph, TensorType, Value
from poot_kernelgen import Epilogue

__all__ = ["AbsorbEpilogues", "PairGates", "SplitHalves", "StackSiblings"]


def _contractions(graph: Graph) -> list[Equation]:
    return [equation for equation in graph.equations if equation.op == "contract"]


def _matrix(equation: Equation) -> Matrix:
    return attribute(equation, "matrix")


def _same_input(equation: Equation) -> tuple[int, str, int]:
    matrix = _matrix(equation)
    return equation.inputs[0].id, matrix.source, matrix.k


@dataclass(frozen=True, slots=True)
class SplitHalves:
    """Split a product that is read as two halves, when these meet again: a stored gate and up pair.

    Attributes:
        interleave: Rows that a layout keeps together; a half is a multiple of it.
    """

    interleave: int = 16

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with one product for each half."""
        links, fresh = Links(graph), fresh_values(graph)
        split: dict[int, list[Equation]] = {}
        mapping: dict[int, Value] = {}
        for equation in _contractions(graph):
            halves = self._halves(equation, links)
            if halves is None:
                continue
            products: list[Equation] = []
            for cut, part in zip(halves, _halves_of(_matrix(equation)), strict=True):
                result = fresh(cut.output.type)
                attributes = {**equation.attributes, "matrix": part}
                products.append(replace(equation, outputs=(result,), attributes=attributes))
                mapping[cut.output.id] = result
            first, second = (product.output for product in products)
            trial = substitute(graph, _replaced(graph, {equation.output.id: products}), mapping)
            if absorb((first, second), Links(trial)) is None:
                for cut in halves:
                    del mapping[cut.output.id]
            else:
                split[equation.output.id] = products
                split.update({cut.output.id: [] for cut in halves})
        return substitute(graph, _replaced(graph, split), mapping) if split else graph

    def _halves(self, equation: Equation, links: Links) -> list[Equation] | None:
        users, n = links.users_of(equation.output), _matrix(equation).n
        if len(users) != 2 or n % (2 * self.interleave) or equation.output.id in links.kept:
            return None
        cuts = [user for user in users if user.op == "slice"]
        bounds = [(attribute(u, "starts")[1], attribute(u, "limits")[1]) for u in cuts]
        if sorted(bounds) != [(0, n // 2), (n // 2, n)]:
            return None
        return cuts if bounds[0][0] == 0 else cuts[::-1]


def _halves_of(matrix: Matrix) -> tuple[Matrix, Matrix]:
    (part,) = matrix.parts
    rows = part.num_rows // 2
    low = replace(part, num_rows=rows)
    return (
        replace(matrix, parts=(low,)),
        replace(matrix, parts=(replace(low, first_row=part.first_row + rows),)),
    )


def _replaced(graph: Graph, by_output: dict[int, list[Equation]]) -> list[Equation]:
    result: list[Equation] = []
    for equation in graph.equations:
        result.extend(by_output.get(equation.outputs[0].id, [equation]))
    return result


@dataclass(frozen=True, slots=True)
class PairGates:
    """Make one gated contraction of two products of one input that meet in pointwise work.

    Attributes:
        interleave: Rows that a layout keeps together; N is a multiple of it.
    """

    interleave: int = 16

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with gated contractions."""
        links = Links(graph)
        groups: dict[Any, list[Equation]] = defaultdict(list)
        for equation in _contractions(graph):
            if _matrix(equation).n % self.interleave == 0:
                groups[*_same_input(equation), _matrix(equation).n].append(equation)
        fusions: list[_Fusion] = []
        for members in groups.values():
            pairs = itertools.combinations(members, 2)
            paired: set[int] = set()
            for first, second in pairs:
                if {first.output.id, second.output.id} & paired:
                    continue
                found = absorb((first.output, second.output), links)
                if found is not None:
                    fusions.append(_Fusion((first, second), found))
                    paired |= {first.output.id, second.output.id}
        return _fused(graph, fusions)


@dataclass(frozen=True, slots=True)
class AbsorbEpilogues:
    """Let each contraction do the pointwise work on its result: bias, activation, residual, cap."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with epilogues."""
        links = Links(graph)
        fusions: list[_Fusion] = []
        taken: set[int] = set()
        for equation in _contractions(graph):
            if equation.attributes["gated"]:
                continue
            found = absorb((equation.output,), links, taken)
            if found is not None:
                fusions.append(_Fusion((equation,), found))
                taken.update(absorbed.output.id for absorbed in found.equations)
        return _fused(graph, fusions)


@dataclass(frozen=True, slots=True)
class _Fusion:
    """One contraction, or a gated pair, and what it absorbs."""

    products: tuple[Equation, ...]
    absorbed: Absorbed


def _fused(graph: Graph, fusions: list[_Fusion]) -> Graph:
    """Put each fusion where the last equation that it absorbs stood."""
    replaced: dict[int, list[Equation]] = {}
    for fusion in fusions:
        for equation in (*fusion.products, *fusion.absorbed.equations):
            replaced[equation.outputs[0].id] = []
        last = fusion.absorbed.equations[-1]
        replaced[last.output.id] = [_fuse(fusion)]
    return replace(graph, equations=tuple(_replaced(graph, replaced))) if fusions else graph


def _fuse(fusion: _Fusion) -> Equation:
    first, found = fusion.products[0], fusion.absorbed
    matrix = _matrix(first)
    gated = len(fusion.products) == 2
    if gated:
        parts: tuple[MatrixPart, ...] = (*matrix.parts, *_matrix(fusion.products[1]).parts)
        matrix = replace(matrix, parts=parts, gated=True)
    attributes: dict[str, Any] = {
        "matrix": matrix,
        "epilogue": found.epilogue,
        "columns": found.columns,
        "gated": gated,
    }
    return replace(
        first,
        inputs=(first.inputs[0], *found.operands),
        outputs=found.equations[-1].outputs,
        attributes=attributes,
    )


@dataclass(frozen=True, slots=True)
class StackSiblings:
    """Make one contraction of several plain products of one input, such as Q, K and V.

    Attributes:
        interleave: Rows that a layout keeps together; every part but the last is a multiple of it.
    """

    interleave: int = 16

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph in which siblings are slices of one product."""
        fresh = fresh_values(graph)
        groups: dict[Any, list[Equation]] = defaultdict(list)
        links = Links(graph)
        for equation in _contractions(graph):
            plain = not equation.attributes["gated"] and equation.output.id not in links.kept
            if plain and _matrix(equation).n % self.interleave == 0:
                groups[_same_input(equation)].append(equation)
        replaced: dict[int, list[Equation]] = {}
        for members in groups.values():
            if len(members) < 2 or len(members) > 4:
                continue
            stacked = self._stack(members, fresh)
            replaced[members[0].output.id] = stacked
            for member in members[1:]:
                replaced[member.output.id] = []
        return replace(graph, equations=tuple(_replaced(graph, replaced))) if replaced else graph

    def _stack(self, members: list[Equation], fresh: fresh_values) -> list[Equation]:
        parts = tuple(part for member in members for part in _matrix(member).parts)
        matrix = replace(_matrix(members[0]), parts=parts)
        rows = members[0].output.shape[0]
        whole = fresh(TensorType((rows, matrix.n), members[0].output.dtype))
        attributes: dict[str, Any] = {
            "matrix": matrix,
            "epilogue": Epilogue(),
            "columns": (),
            "gated": False,
        }
        result = [replace(members[0], outputs=(whole,), attributes=attributes)]
        start = 0
        for member in members:
            end = start + _matrix(member).n
            cut: dict[str, Any] = {
                "starts": (0, start),
                "limits": (rows, end),
                "strides": (1, 1),
            }
            result.append(
                Equation(
                    "slice", (whole,), member.outputs, cut, None, member.scope, member.location
                )
            )
            start = end
        return result
