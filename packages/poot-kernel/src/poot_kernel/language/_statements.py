"""Import of statements: assignment, branches, and loops whose carried values are inferred."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import cast

from poot_kernel.ir import ScalarType, TileType, TokenType, Type, Value
from poot_kernel.language import intrinsics
from poot_kernel.language._assigned import assigned_names, read_names
from poot_kernel.language._expressions import ExpressionImporter
from poot_kernel.language._values import (
    Closure,
    Place,
    Unbound,
    flatten,
    has_runtime,
    is_carriable,
    rebuild,
)

__all__ = ["StatementImporter"]


class _Returned(Exception):
    """Leaves a helper's body; control flow of the importer, no error."""

    def __init__(self, item: object) -> None:
        super().__init__()
        self.item = item


class StatementImporter(ExpressionImporter):
    """Imports the statements of kernels and helpers."""

    # Runtime branches and loops around the statement, within the function being imported.
    _nesting = 0

    def function_body(self, node: ast.AST) -> object:
        """Import a function's body; returns what its ``return`` gives."""
        assert isinstance(node, ast.FunctionDef)
        nesting, self._nesting = self._nesting, 0
        try:
            self.block(node.body)
        except _Returned as returned:
            return returned.item
        finally:
            self._nesting = nesting
        return None

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Import statements in order."""
        for statement in body:
            with self.at(statement):
                self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:  # noqa: C901 -- one case for each form
        match node:
            case ast.Assign(targets=targets, value=value):
                item = self.settle(self.evaluate(value))
                for target in targets:
                    self.bind(target, item)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._annotated(node, target, annotation, value)
            case ast.AugAssign(target=target, op=op, value=value):
                self._augmented(node, target, op, value)
            case ast.Expr(value=value):
                if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                    self.evaluate(value, as_place=True)
            case ast.If():
                self._if(node)
            case ast.For():
                self._for(node)
            case ast.While():
                self._while(node)
            case ast.FunctionDef(name=name):
                self.frame.names[name] = Closure(node, self.frame)
            case ast.Return(value=value):
                self._return(node, value)
            case ast.Assert(test=test, msg=message):
                if not self.import_time(test, self.evaluate(test)):
                    text = "" if message is None else str(self.evaluate(message))
                    self.refuse(node, f"assertion fails at import: {text or ast.unparse(test)}")
            case ast.Pass():
                pass
            case ast.With():
                self.refuse(node, "'with' stands only as 'with load_part():' first in a pipeline")
            case _:
                kind = type(node).__name__
                self.refuse(node, f"kernels have no {_FORMS.get(kind, kind)}")

    def _return(self, node: ast.stmt, value: ast.expr | None) -> None:
        if self._depth == 0 and value is not None:
            self.refuse(node, "a kernel returns nothing: it writes into its Out arrays")
        if self._nesting:
            self.refuse(
                node, "'return' cannot stand under a branch or loop of run time; "
                "assign to a variable and return it at the end"
            )  # fmt: skip
        raise _Returned(None if value is None else self.evaluate(value))

    # ---- assignment

    def bind(self, target: ast.expr, item: object) -> None:
        """Give a name, or several, to an object; or store it into memory."""
        match target:
            case ast.Name(id=name):
                self.frame.names[name] = item
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = list(self.unrolled(target, item))
                if len(items) != len(targets):
                    self.refuse(target, f"{len(targets)} names for {len(items)} values")
                for each, part in zip(targets, items, strict=True):
                    self.bind(each, part)
            case ast.Subscript():
                self._store(target, item)
            case _:
                self.refuse(target, f"cannot assign to {ast.unparse(target)}")

    def _store(self, target: ast.Subscript, item: object) -> None:
        base = self.evaluate(target.value)
        if isinstance(base, list) and isinstance(target.value, ast.Name):
            index = self.import_time(target.slice, self.evaluate(target.slice))
            changed = list(cast("list[object]", base))
            changed[index] = item
            self.frame.names[target.value.id] = changed
            return
        place = self.evaluate(target, as_place=True)
        if not isinstance(place, Place):
            self.refuse(target, f"cannot assign into {self.describe(base)}: values do not change")
        with self.at(target):
            self.write(place, item)

    def _annotated(
        self, node: ast.stmt, target: ast.expr, annotation: ast.expr, value: ast.expr | None
    ) -> None:
        if value is None:
            self.refuse(node, "a variable needs a value")
        call = ast.copy_location(ast.Call(annotation, [value], []), node)
        self.bind(target, self.settle(self.evaluate(call)))

    def _augmented(
        self, node: ast.AugAssign, target: ast.expr, op: ast.operator, value: ast.expr
    ) -> None:
        before = self.evaluate(_as_load(target))
        expression = ast.copy_location(ast.BinOp(_as_load(target), op, value), node)
        result = self.binary(expression, op, before, self.evaluate(value))
        self.bind(target, self.settle(result))

    # ---- branches

    def _if(self, node: ast.If) -> None:
        condition = self.evaluate(node.test)
        if not has_runtime(condition):
            self.block(node.body if condition else node.orelse)
            return
        before = dict(self.frame.names)
        after: list[dict[str, object]] = []
        self._nesting += 1
        with self.b.if_(self.value(condition)) as branch:
            sides = ((branch.then, node.body), (branch.otherwise, node.orelse))
            for side, body in sides:
                self.frame.names = dict(before)
                with side():
                    self.block(body)
                after.append(self.frame.names)
            joined = self._joined(node, before, after)
            values = [self._side(node, joined, names) for names in after]
            for number, (side, _) in enumerate(sides):
                other = [getattr(v, "type", None) for v in values[1 - number]]
                with side():
                    self.b.op("yield", self.flattened_values(values[number], other))
        self._nesting -= 1
        leaves = iter(branch.results)
        for name, like in joined.items():
            before[name] = rebuild(like, cast("builtins.enumerate[object]", leaves))
        for name in {*after[0], *after[1]} - set(before):
            before[name] = Unbound("only one side of a branch assigns it")
        self.frame.names = before

    def _joined(
        self, node: ast.If, before: dict[str, object], after: Sequence[dict[str, object]]
    ) -> dict[str, object]:
        """Return the names whose value depends on the side taken, with one side's object."""
        joined: dict[str, object] = {}
        for name in assigned_names([*node.body, *node.orelse]):
            sides = [names.get(name) for names in after]
            if name not in after[0] or name not in after[1] or sides[0] is sides[1]:
                if all(name in names for names in after):
                    before[name] = sides[0]
                continue
            if not all(is_carriable(side) for side in sides):
                if name in before and is_carriable(before[name]):
                    self.refuse(node, f"{name!r} cannot leave the branch: it is no value")
                before[name] = Unbound("the sides of a branch make different things of it")
                continue
            joined[name] = sides[0]
        return joined

    def _side(
        self, node: ast.If, joined: dict[str, object], names: dict[str, object]
    ) -> list[object]:
        leaves: list[object] = []
        for name, like in joined.items():
            found = flatten(names[name])
            if len(found) != len(flatten(like)):
                self.refuse(node, f"the sides of the branch give {name!r} different lengths")
            leaves.extend(found)
        return leaves

    # ---- loops

    def _for(self, node: ast.For) -> None:
        if node.orelse:
            self.refuse(node, "loops have no 'else'")
        call = node.iter if isinstance(node.iter, ast.Call) else None
        callee = self.evaluate(call.func) if call else None
        if call and (callee is builtins.range or callee is intrinsics.loop):
            self._counted(node, call)
        elif call and callee is intrinsics.foreach:
            self._foreach(node, call)
        elif call and callee is intrinsics.pipeline:
            self._pipeline(node, call)
        else:
            for item in self.unrolled(node.iter, self.evaluate(node.iter)):
                self.bind(node.target, item)
                self.block(node.body)

    def _bounds(self, call: ast.Call, *names: str) -> tuple[list[Value | int], dict[str, object]]:
        positional, named = self._arguments(call, places=False)
        unknown = set(named) - set(names)
        if unknown or not 1 <= len(positional) <= 3:
            self.refuse(call, f"takes 1 to 3 bounds and {', '.join(names) or 'no options'}")
        for item in positional:
            if not isinstance(item, Value | int):
                self.refuse(call, f"bounds must be integers, got {self.describe(item)}")
        bounds = [cast("Value | int", item) for item in positional]
        return ([0, *bounds] if len(bounds) == 1 else bounds), named

    def _counted(self, node: ast.For, call: ast.Call) -> None:
        bounds, named = self._bounds(call, "unroll", "static")
        if len(bounds) == 3 and isinstance(bounds[2], int) and bounds[2] <= 0:
            self.refuse(call, f"the step of a loop must be positive, got {bounds[2]}")
        carried = self._carried(node.body)
        unroll, static = cast("int", named.get("unroll", 1)), bool(named.get("static", False))
        step = bounds[2] if len(bounds) == 3 else 1
        initial = self._initial(carried)
        with self.b.for_(bounds[0], bounds[1], step, initial, unroll=unroll, static=static) as loop:
            self._loop_body(node, carried, loop.index, loop.carried)
        self._after(node.body, carried, loop.results, node.target)

    def _foreach(self, node: ast.For, call: ast.Call) -> None:
        bounds, named = self._bounds(call, "scope", "unroll")
        if len(bounds) == 3:
            self.refuse(call, "foreach() has no step")
        carried = self._carried(node.body)
        scope, unroll = str(named.get("scope", "workgroup")), cast("int", named.get("unroll", 1))
        initial = self._initial(carried)
        with self.b.foreach(bounds[0], bounds[1], initial, scope=scope, unroll=unroll) as loop:
            self._loop_body(node, carried, loop.index, loop.carried)
        self._after(node.body, carried, loop.results, node.target)

    def _loop_body(
        self, node: ast.For, carried: dict[str, object], index: Value, arguments: Sequence[Value]
    ) -> None:
        before = dict(self.frame.names)
        self._restore(carried, arguments)
        self.bind(node.target, index)
        self._nested(node.body)
        self._yield(node, carried, [value.type for value in arguments])
        self.frame.names = before

    def _nested(self, body: Sequence[ast.stmt]) -> None:
        self._nesting += 1
        self.block(body)
        self._nesting -= 1

    def _carried(self, body: Sequence[ast.stmt]) -> dict[str, object]:
        """Return the variables that a loop assigns and that have a value before it."""
        names = self.frame.names
        return {
            name: names[name]
            for name in assigned_names(body)
            if name in names and is_carriable(names[name])
        }

    def _initial(self, carried: dict[str, object]) -> list[Value]:
        """Return the carried values before the loop, numbers as constants."""
        leaves = [leaf for item in carried.values() for leaf in flatten(item)]
        return [self.value(leaf) for leaf in leaves]

    def _restore(self, carried: dict[str, object], values: Sequence[Value]) -> None:
        leaves = iter(values)
        for name, like in carried.items():
            self.frame.names[name] = rebuild(like, leaves)

    def _yield(self, node: ast.stmt, carried: dict[str, object], types: Sequence[Type]) -> None:
        """End a loop's body with the carried variables."""
        leaves: list[object] = []
        for name, like in carried.items():
            found = flatten(self.frame.names[name])
            expected = types[len(leaves) : len(leaves) + len(flatten(like))]
            if len(found) != len(expected):
                self.refuse(node, f"the loop changes the length of {name!r}")
            for leaf, before in zip(found, expected, strict=True):
                self._check_carried(node, name, leaf, before)
            leaves.extend(found)
        self.b.op("yield", self.flattened_values(leaves, types))

    def _check_carried(self, node: ast.stmt, name: str, leaf: object, before: Type) -> None:
        if not is_carriable(leaf):
            self.refuse(node, f"the loop cannot carry {name!r}: {self.describe(leaf)}")
        if isinstance(leaf, Value) and leaf.type != before:
            hint = ""
            if isinstance(leaf.type, ScalarType) and isinstance(before, ScalarType):
                hint = f"; begin with {leaf.type.dtype.name}(...)"
            elif isinstance(leaf.type, TileType) and isinstance(before, TileType):
                hint = "; begin with that type, or move() it to the space it began in"
            self.refuse(
                node, f"{name!r} is {before} before the loop and {leaf.type} after a turn{hint}"
            )

    def _after(
        self,
        body: Sequence[ast.stmt],
        carried: dict[str, object],
        results: Sequence[Value],
        target: ast.expr | None = None,
    ) -> None:
        """Bind the carried variables to a loop's results and forget what it bound besides."""
        for name in assigned_names(body):
            if name not in carried and name not in self.frame.names:
                self.frame.names[name] = Unbound("it is assigned only inside of a loop")
        if isinstance(target, ast.Name):
            self.frame.names[target.id] = Unbound("a loop's variable ends with the loop")
        self._restore(carried, results)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            self.refuse(node, "loops have no 'else'")
        carried = self._carried(node.body)
        before = dict(self.frame.names)
        with self.b.while_(self._initial(carried)) as loop:
            with loop.condition() as arguments:
                self._restore(carried, arguments)
                test = self.evaluate(node.test)
                if not has_runtime(test):
                    self.refuse(
                        node.test, "the condition is known at import time and never changes"
                    )
                loop.test(self.value(test))
            with loop.body() as arguments:
                self.frame.names = dict(before)
                self._restore(carried, arguments)
                self._nested(node.body)
                self._yield(node, carried, [value.type for value in arguments])
            self.frame.names = before
        self._after(node.body, carried, loop.results)

    # ---- pipelines

    def _pipeline(self, node: ast.For, call: ast.Call) -> None:
        bounds, named = self._bounds(call, "stages")
        step = bounds[2] if len(bounds) == 3 else 1
        first, *compute = node.body
        if not self._is_load_part(first):
            self.refuse(first, "a pipeline loop begins with 'with load_part():'")
        carried = self._carried(compute)
        before = dict(self.frame.names)
        stages = cast("int", named.get("stages", 2))
        with self.b.pipeline(
            bounds[0], bounds[1], step, self._initial(carried), stages=stages
        ) as pipe:
            with pipe.load() as index:
                self.bind(node.target, index)
                moved = self._load_part(cast("ast.With", first), read_names(compute))
                self.b.op("yield", [cast("Value", item) for item in moved.values()])
            with pipe.compute() as tiles:
                self.frame.names = dict(before)
                for name in assigned_names(cast("ast.With", first).body):
                    self.frame.names[name] = Unbound("only tiles leave a load part")
                self.frame.names.update(zip(moved, tiles, strict=True))
                self.bind(node.target, pipe.index)
                self._restore(carried, pipe.carried)
                self._nested(compute)
                self._yield(node, carried, [value.type for value in pipe.carried])
            self.frame.names = before
        self._after(node.body, carried, pipe.results, node.target)

    def _is_load_part(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.With(
                items=[ast.withitem(context_expr=ast.Call(func=func), optional_vars=None)]
            ):
                return self.evaluate(func) is intrinsics.load_part
            case _:
                return False

    def _load_part(self, node: ast.With, wanted: set[str]) -> dict[str, object]:
        self._nested(node.body)
        moved: dict[str, object] = {}
        for name in assigned_names(node.body):
            item = self.frame.names[name]
            moves = isinstance(item, Value) and isinstance(item.type, TileType | TokenType)
            if moves and name in wanted:
                moved[name] = item
        if not moved:
            self.refuse(node, "the load part gives no tile that the rest of the loop uses")
        return moved


def _as_load(target: ast.expr) -> ast.expr:
    """Return an assignment's target as the expression that reads it."""
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(name, ast.Load()), target)
        case ast.Subscript(value=value, slice=index):
            return ast.copy_location(ast.Subscript(value, index, ast.Load()), target)
        case _:
            return target


_FORMS = {
    "Break": "'break': make the loop's condition say when to stop ('while')",
    "Continue": "'continue': use 'if'",
    "Try": "'try'",
    "Raise": "'raise': mark a fault with status_set()",
    "Global": "'global'",
    "Nonlocal": "'nonlocal'",
    "Import": "imports inside; import at the top of the module",
    "ImportFrom": "imports inside; import at the top of the module",
    "Delete": "'del'",
    "ClassDef": "classes inside",
    "Match": "'match': use 'if'",
    "AsyncFor": "'async'",
    "AsyncWith": "'async'",
}
