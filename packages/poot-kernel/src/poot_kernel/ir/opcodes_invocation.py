"""Opcode table: where an invocation stands, and how it talks to the others of its group."""

from __future__ import annotations

from poot_kernel.ir.specs import (
    REDUCE_KINDS,
    OpSpec,
    Request,
    RuleError,
    Uniformity,
    lane_op,
)
from poot_kernel.ir.types import (
    BOOLEAN,
    INDEX,
    Type,
)

__all__ = ["INVOCATION_OPS"]


def _query(request: Request) -> tuple[Type, ...]:
    request.count(0)
    if "axis" in request.attributes and request.attribute("axis", int) not in {0, 1, 2}:
        raise RuleError("attribute 'axis' must be 0, 1 or 2")
    return (INDEX,)


def _group_reduce(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.one_of("kind", REDUCE_KINDS)
    return (request.elementwise(0),)


def _shuffle(request: Request) -> tuple[Type, ...]:
    request.count(2)
    request.integer(1)
    return (request.elementwise(0),)


def _shuffle_xor(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.attribute("lane_mask", int)
    return (request.elementwise(0),)


def _vote(request: Request) -> tuple[Type, ...]:
    request.count(1)
    request.condition(0)
    request.one_of("kind", ("any", "all"))
    return (BOOLEAN,)


def _barrier(request: Request) -> tuple[Type, ...]:
    request.count(0)
    request.one_of("scope", ("workgroup", "subgroup"))
    return ()


INVOCATION_OPS: tuple[OpSpec, ...] = (
    lane_op(
        "workgroup_id",
        "",
        _query,
        "pure",
        "workgroup's coordinate",
        {"axis": 0},
        both=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "grid_size",
        "",
        _query,
        "pure",
        "workgroups along an axis",
        {"axis": 0},
        both=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "local_id",
        "",
        _query,
        "pure",
        "invocation in its workgroup; subgroups are contiguous",
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "local_size",
        "",
        _query,
        "pure",
        "invocations of a workgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "subgroup_id",
        "",
        _query,
        "pure",
        "subgroup in its workgroup",
        uniformity=Uniformity.SUBGROUP,
    ),
    lane_op(
        "num_subgroups",
        "",
        _query,
        "pure",
        "subgroups of a workgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "subgroup_lane",
        "",
        _query,
        "pure",
        "invocation in its subgroup",
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "subgroup_size",
        "",
        _query,
        "pure",
        "invocations of a subgroup",
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "subgroup_reduce",
        "x",
        _group_reduce,
        "pure",
        "active lanes combined by halving: lane i with lane i + size / 2 first",
        {"kind": None},
        uniformity=Uniformity.SUBGROUP,
    ),
    lane_op(
        "subgroup_scan",
        "x",
        _group_reduce,
        "pure",
        "prefix combination by ascending lane",
        {"kind": None, "exclusive": False},
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "subgroup_shuffle",
        "x, lane",
        _shuffle,
        "pure",
        "x of another lane",
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "subgroup_shuffle_xor",
        "x",
        _shuffle_xor,
        "pure",
        "x of lane ^ lane_mask",
        {"lane_mask": None},
        uniformity=Uniformity.VARYING,
    ),
    lane_op(
        "subgroup_broadcast",
        "x, lane",
        _shuffle,
        "pure",
        "x of one lane, uniform",
        uniformity=Uniformity.SUBGROUP,
    ),
    lane_op(
        "subgroup_vote",
        "x",
        _vote,
        "pure",
        "any or all of the active lanes",
        {"kind": None},
        uniformity=Uniformity.SUBGROUP,
    ),
    lane_op(
        "workgroup_reduce",
        "x",
        _group_reduce,
        "sync",
        "subgroup_reduce, then subgroups in ascending order",
        {"kind": None},
        uniform=True,
        uniformity=Uniformity.WORKGROUP,
    ),
    lane_op(
        "barrier",
        "",
        _barrier,
        "sync",
        "order memory among the scope's invocations",
        {"scope": "workgroup"},
        uniform=True,
    ),
)
