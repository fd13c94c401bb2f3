"""Products with weights become ``contract`` equations over named matrices; so do embedding reads.

Internal equations after this pass:

- ``contract(x, *epilogue inputs)`` with the attributes ``matrix``, ``epilogue``, ``columns``
  (vectors that epilogue inputs read, None where one is an operand) and ``gated``;
- ``embed(ids)`` with the attributes ``matrix`` and ``scale``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from poot_core import DType, f32
from poot_executor._rewrite import (
    Links,
    attribute,
    extents,
    fresh_values,
    leading_symbol,
    substitute,
)
from poot_executor._weights import Matrix, MatrixPart
from poot_graph_ir import Equation, Graph, Storage, TensorType, Value
from poot_kernelgen import Epilogue

__all__ = ["FormContractions", "FormEmbeddings"]


@dataclass(frozen=True, slots=True)
class FormContractions:
    """Turn ``dot_general`` of rows and a stored matrix into ``contract``."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with ``contract`` equations."""
        links = Links(graph)
        equations: list[Equation] = []
        for equation in graph.equations:
            matrix = _weight_of(equation, links) if equation.op == "dot_general" else None
            if matrix is not None:
                attributes: dict[str, Any] = {
                    "matrix": matrix,
                    "epilogue": Epilogue(),
                    "columns": (),
                    "gated": False,
                }
                x = equation.inputs[:1]
                equation = replace(equation, op="contract", inputs=x, attributes=attributes)
            equations.append(equation)
        return replace(graph, equations=tuple(equations))


def _weight_of(equation: Equation, links: Links) -> Matrix | None:
    """Return the stored matrix that a product reads, or None if it is no product of that kind."""
    x, w = equation.inputs
    fits = (
        leading_symbol(x) is not None
        and x.type.rank == 2
        and not attribute(equation, "lhs_batch")
        and attribute(equation, "lhs_contract") == (1,)
        and w.type.rank == 2
    )
    if not fits:
        return None
    (axis,) = attribute(equation, "rhs_contract")
    return _stored_matrix(w, links, transposed=axis == 0)


def _stored_matrix(value: Value, links: Links, *, transposed: bool) -> Matrix | None:
    """Follow decoding, transposing and row slices back to a const."""
    first, count = 0, None
    while value.storage is not Storage.CONST:
        maker = links.maker.get(value.id)
        if maker is None:
            return None
        if maker.op == "transpose":
            transposed = not transposed
        elif maker.op == "slice" and count is None:
            axis = 1 if transposed else 0
            starts, limits, strides = (
                attribute(maker, name) for name in ("starts", "limits", "strides")
            )
            whole = starts[1 - axis] == 0 and limits[1 - axis] == maker.inputs[0].shape[1 - axis]
            if not whole or strides != (1, 1):
                return None
            first, count = starts[axis], limits[axis] - starts[axis]
        elif maker.op not in {"dequantize", "convert"}:
            return None
        value = maker.inputs[0]
    if value.type.rank != 2 or (transposed and not isinstance(value.dtype, DType)):
        return None
    n, k = reversed(extents(value)) if transposed else extents(value)
    part = MatrixPart(value.name, first, n if count is None else count, transposed)
    return Matrix(value.dtype.name, k, (part,))


@dataclass(frozen=True, slots=True)
class FormEmbeddings:
    """Turn reads of table rows at ids, their decoding and a constant factor into ``embed``."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with ``embed`` equations."""
        links, fresh = Links(graph), fresh_values(graph)
        equations: list[Equation] = []
        mapping: dict[int, Value] = {}
        gone: set[int] = set()
        for equation in graph.equations:
            if equation.outputs[0].id in gone:
                continue
            table = equation.inputs[0] if equation.op == "gather" else None
            cut = None if table is None else links.maker.get(table.id)
            first, count = 0, None
            if cut is not None and cut.op == "slice" and _cuts_rows(cut):
                first = attribute(cut, "starts")[0]
                count = attribute(cut, "limits")[0] - first
                table = cut.inputs[0]
            if (
                table is None
                or table.storage is not Storage.CONST
                or table.type.rank != 2
                or equation.attributes["axis"] != 0
                or equation.inputs[1].storage is not Storage.SLOT
            ):
                equations.append(equation)
                continue
            n, k = extents(table)
            decoded, scale, chain = _decoded(equation, links)
            gone.update(chain)
            part = MatrixPart(table.name, first, n if count is None else count)
            matrix = Matrix(table.dtype.name, k, (part,))
            result = fresh(TensorType(equation.output.shape, f32))
            attributes: dict[str, Any] = {"matrix": matrix, "scale": scale}
            ids = equation.inputs[1:]
            equations.append(
                Equation(
                    "embed", ids, (result,), attributes, None, equation.scope, equation.location
                )
            )
            mapping[decoded.id] = result
        return substitute(graph, equations, mapping) if mapping else graph


def _cuts_rows(cut: Equation) -> bool:
    """Whether a slice keeps whole neighbouring rows of a table."""
    shape = cut.inputs[0].shape
    return (
        len(shape) == 2
        and (attribute(cut, "starts")[1], attribute(cut, "limits")[1]) == (0, shape[1])
        and attribute(cut, "strides") == (1, 1)
    )


def _decoded(equation: Equation, links: Links) -> tuple[Value, float, list[int]]:
    """Return the f32 value that a table read ends in, the factor applied to it, and what is used up."""
    value, scale = equation.output, 1.0
    chain: list[int] = []
    while links.is_used_once(value):
        (user,) = links.users_of(value)
        if value.dtype is not f32:
            if user.op not in {"dequantize", "convert"} or user.output.dtype is not f32:
                break
        elif user.op == "mul" and scale == 1.0:
            other = user.inputs[1] if user.inputs[0].id == value.id else user.inputs[0]
            maker = links.maker.get(other.id)
            if maker is None or maker.op != "full":
                break
            scale = float(attribute(maker, "value"))
        else:
            break
        value = user.output
        chain.append(value.id)
    return value, scale, chain
