"""Opcode table: control flow."""

from __future__ import annotations

from collections.abc import Sequence

from poot_kernel.ir.core import Attribute
from poot_kernel.ir.specs import (
    OpSpec,
    Request,
    Rule,
    RuleError,
)
from poot_kernel.ir.types import (
    INDEX,
    ArrayType,
    SharedType,
    TileType,
    TokenType,
    Type,
)

__all__ = ["CONTROL_OPS"]


def _yielded(request: Request, region: int) -> list[Type]:
    return [value.type for value in request.regions[region].terminator.operands]


def _match(got: Sequence[Type], expected: Sequence[Type], what: str) -> None:
    if list(got) != list(expected):
        raise RuleError(
            f"{what}: got ({', '.join(map(str, got))}), expected ({', '.join(map(str, expected))})"
        )


def _carried(request: Request, start: int) -> list[Type]:
    found = [value.type for value in request.operands[start:]]
    for carried in found:
        if isinstance(carried, ArrayType | SharedType | TokenType):
            raise RuleError(f"a loop cannot carry {carried}")
    return found


def _loop(bounds: int) -> Rule:
    def rule(request: Request) -> tuple[Type, ...]:
        for index in range(bounds):
            request.integer(index)
            if request.type(index) != INDEX:
                raise RuleError(f"bound {index} must be {INDEX}, got {request.type(index)}")
        carried = _carried(request, bounds)
        arguments = [value.type for value in request.regions[0].arguments]
        _match(arguments, [INDEX, *carried], "body arguments")
        _match(_yielded(request, 0), carried, "body yields")
        return tuple(carried)

    return rule


def _foreach(request: Request) -> tuple[Type, ...]:
    request.one_of("scope", ("workgroup", "subgroup"))
    return _loop(2)(request)


def _while(request: Request) -> tuple[Type, ...]:
    carried = _carried(request, 0)
    for region in request.regions:
        _match([v.type for v in region.arguments], carried, "region arguments")
    test = request.regions[0].terminator
    if test.opcode != "condition":
        raise RuleError("the first region must end in condition")
    _match([v.type for v in test.operands[1:]], carried, "condition passes")
    _match(_yielded(request, 1), carried, "body yields")
    return tuple(carried)


def _if(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.condition(0)
    _match(_yielded(request, 1), _yielded(request, 0), "else yields")
    return tuple(_yielded(request, 0))


def _condition(request: Request) -> tuple[Type, ...]:
    request.count(1, 1 << 16)
    request.condition(0)
    return ()


def _pipeline(request: Request) -> tuple[Type, ...]:
    for index in range(3):
        if request.type(index) != INDEX:
            raise RuleError(f"bound {index} must be {INDEX}, got {request.type(index)}")
    carried = _carried(request, 3)
    load, compute = request.regions
    _match([v.type for v in load.arguments], [INDEX], "load arguments")
    moved: list[Type] = [t.tile if isinstance(t, TokenType) else t for t in _yielded(request, 0)]
    if not all(isinstance(t, TileType) for t in moved):
        raise RuleError("the load part must yield tiles or tokens")
    arguments = [v.type for v in compute.arguments]
    _match(arguments, [INDEX, *carried, *moved], "compute arguments")
    _match(_yielded(request, 1), carried, "compute yields")
    return tuple(carried)


def _nothing(request: Request) -> tuple[Type, ...]:
    return ()


def _control(
    name: str,
    operands: str,
    rule: Rule,
    regions: int,
    doc: str,
    attributes: dict[str, Attribute | None] | None = None,
    *,
    level: str = "both",
    terminator: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        level="lane" if level == "lane" else "tile" if level == "tile" else "both",
        operands=operands,
        rule=rule,
        attributes=attributes or {},
        num_regions=regions,
        is_terminator=terminator,
        doc=doc,
    )


CONTROL_OPS: tuple[OpSpec, ...] = (
    _control(
        "for",
        "lower, upper, step, carried...",
        _loop(3),
        1,
        "counted loop: body(index, carried...) yields carried; step is positive; static "
        "asks for full unrolling and needs constant bounds; dealt says that turns are independent "
        "and carry nothing, so that subgroups may share them",
        {"unroll": 1, "static": False, "dealt": False},
    ),
    _control(
        "foreach",
        "lower, upper, carried...",
        _foreach,
        1,
        "each index once, dealt round-robin to the scope's invocations in ascending order: "
        "index = lower + lane + j * size, lanes past the end are masked",
        {"scope": "workgroup", "unroll": 1},
        level="lane",
    ),
    _control(
        "while",
        "carried...",
        _while,
        2,
        "region 0 ends in condition(test, carried...), region 1 yields carried",
    ),
    _control("if", "condition", _if, 2, "then and else yield the results"),
    _control(
        "pipeline",
        "lower, upper, step, carried...",
        _pipeline,
        2,
        "region 0 load(index) yields tiles or tokens and may run stages - 1 iterations ahead; "
        "region 1 compute(index, carried..., tiles...) yields carried",
        {"stages": 2},
        level="tile",
    ),
    _control("yield", "values...", _nothing, 0, "end of a region", terminator=True),
    _control(
        "condition",
        "test, values...",
        _condition,
        0,
        "end of a while's first region",
        terminator=True,
    ),
)
