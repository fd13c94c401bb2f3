"""Which names a piece of kernel source assigns and reads; decides what loops carry."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

__all__ = ["assigned_names", "read_names"]


def assigned_names(body: Sequence[ast.stmt]) -> list[str]:
    """Return the names that statements assign, in order, without loop variables.

    Storing into ``x[i]`` counts as assigning ``x``, because ``x`` may be a list of values.
    """
    found: dict[str, None] = {}
    for statement in body:
        for name in _assigned(statement):
            found[name] = None
    return list(found)


def _assigned(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _targets(target)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield from _targets(target)
        case ast.FunctionDef(name=name):
            yield name
        case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
            yield from assigned_names([*body, *orelse])
        case ast.If(body=body, orelse=orelse):
            yield from assigned_names([*body, *orelse])
        case ast.With(body=body):
            yield from assigned_names(body)
        case _:
            return


def _targets(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            yield name
        case ast.Tuple(elts=items) | ast.List(elts=items):
            for item in items:
                yield from _targets(item)
        case _:
            return


def read_names(body: Sequence[ast.AST]) -> set[str]:
    """Return every name that is read anywhere below the nodes."""
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    } | {
        node.target.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
