"""Launches as the planner thinks of them: requests and named operands, not yet addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from poot_executor._weights import Constant, Matrix, Vector
from poot_kernelgen import Request

__all__ = ["Operand", "OperandKind", "PlannedLaunch", "Select", "Temp"]

OperandKind = Literal[
    "temp",
    "matrix",
    "vector",
    "constant",
    "slot",
    "state",
    "status",
    "work",
    "work_count",
    "partial_stride",
    "symbol",
    "i64",
    "f32",
]

Select = Literal["only", "regime", "query_tile"]
"""How a step picks one of a launch's requests: there is one; by the rows of its symbol (one, few,
some, many); by whether each sequence has one token (query tile 1) or some have more."""


class Operand(NamedTuple):
    """One argument of a kernel.

    ``value`` is by kind: temp: its id; matrix, vector, constant: the record (its index, once in a
    program); slot and state: the name; status and symbol: ``T``, ``R`` or ``L``; work, work_count,
    partial_stride: index of the attention class; i64 and f32: the number.
    """

    kind: OperandKind
    value: int | float | str | Matrix | Vector | Constant


@dataclass(frozen=True, slots=True)
class Temp:
    """An intermediate: ``row_bytes`` for each row of ``symbol``.

    Attributes:
        symbol: ``T`` or ``L``.
        row_bytes: Bytes of a row.
    """

    symbol: str
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLaunch:
    """One kernel launch.

    Attributes:
        requests: The request, or its variants, all over the same operands.
        select: How a step picks a variant.
        role: Which kernel of the answer to the request.
        operands: In the order of the kernel's arguments.
        symbol: Domain: ``T`` or ``L``.
        label: Place in the model and what it does.
        layer: Repeated layer that it belongs to, or None.
    """

    requests: tuple[Request, ...]
    select: Select
    role: str
    operands: tuple[Operand, ...]
    symbol: str
    label: str
    layer: int | None
