"""``@kernel``: a Python function that is imported into kernel IR, once for each specialisation."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from poot_core import DType
from poot_kernel.interpreter import interpret
from poot_kernel.ir import IRBuilder, KernelFunction, Level, SizeLike, Value, as_size
from poot_kernel.language._calls import outer_names, substitute
from poot_kernel.language._source import Source, read_function
from poot_kernel.language._statements import StatementImporter
from poot_kernel.language._values import Frame, Inline
from poot_kernel.language.annotations import ArrayAnnotation, Const, ConstAnnotation

__all__ = ["Kernel", "inline", "kernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    level: Level
    grid: tuple[SizeLike, ...]
    workgroup_size: int | str | None
    fastmath: frozenset[str]
    index_bits: int


class Kernel:
    """A kernel in source form.

    ``specialise`` gives the IR for chosen compile-time parameters; calling it runs the interpreter
    on NumPy arrays.
    """

    def __init__(self, function: Callable[..., Any], options: _Options) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = function.__name__
        self._options = options
        self._known: dict[tuple[tuple[str, object], ...], KernelFunction] = {}

    @functools.cached_property
    def constants(self) -> tuple[str, ...]:
        """Names of the compile-time parameters."""
        importer, definition = self._reader({})
        return tuple(
            argument.arg for argument in _arguments(definition) if _const(importer, argument)
        )

    def specialise(self, **constants: Any) -> KernelFunction:
        """Return the verified IR for compile-time parameters; equal calls give one object.

        Args:
            constants: Values of the ``Const`` parameters without a default, and of others at will.

        Raises:
            KernelSyntaxError: If the source uses what the language does not have; carries path,
                line, column, excerpt and reason.
        """
        key = tuple(sorted(constants.items()))
        if key not in self._known:
            self._known[key] = self._import(constants)
        return self._known[key]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run on NumPy arrays in the interpreter; arrays marked Out and InOut are changed."""
        constants = {name: kwargs.pop(name) for name in self.constants if name in kwargs}
        found = self.specialise(**constants)
        names = [parameter.name for parameter in found.parameters]
        signature = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        interpret(found, signature.bind(*args, **kwargs).arguments)

    # ---- import

    def _reader(self, constants: dict[str, object]) -> tuple[StatementImporter, ast.FunctionDef]:
        source, definition = read_function(self.function)
        frame = Frame(source, dict(constants), outer_names(self.function))
        builder = IRBuilder(self.name, level=self._options.level, grid=[1])
        return StatementImporter(builder, frame, constants), definition

    def _import(self, given: dict[str, object]) -> KernelFunction:
        source, definition = read_function(self.function)
        constants = self._constants(source, definition, given)
        importer, _ = self._reader(constants)
        size = self._options.workgroup_size
        builder = IRBuilder(
            self.name + _suffix(given),
            level=self._options.level,
            grid=[substitute(as_size(each), constants) for each in self._options.grid],
            workgroup_size=cast("int", constants[size]) if isinstance(size, str) else size,
            fastmath=self._options.fastmath,
            index_bits=self._options.index_bits,
        )
        importer.b = builder
        for argument in _arguments(definition):
            if argument.arg not in constants:
                value = self._parameter(importer, argument)
                importer.frame.names[argument.arg] = value
        importer.function_body(definition)
        with importer.at(definition):
            return builder.finish()

    def _constants(
        self, source: Source, definition: ast.FunctionDef, given: dict[str, object]
    ) -> dict[str, object]:
        importer, _ = self._reader({})
        found: dict[str, object] = {}
        defaults = _defaults(definition)
        for argument in _arguments(definition):
            annotation = _const(importer, argument)
            if annotation is None:
                if argument.arg in defaults:
                    raise source.refuse(argument, "only Const parameters have defaults")
                continue
            if argument.arg in given:
                item = given[argument.arg]
            elif argument.arg in defaults:
                item = importer.evaluate(defaults[argument.arg])
            else:
                raise source.refuse(argument, f"compile-time parameter {argument.arg!r} is missing")
            if isinstance(annotation.type, type) and not isinstance(item, annotation.type):
                name = annotation.type.__name__
                raise source.refuse(argument, f"{argument.arg!r} must be a {name}, got {item!r}")
            found[argument.arg] = item
        unknown = sorted(set(given) - set(found))
        if unknown:
            known = ", ".join(found) or "none"
            raise source.refuse(
                definition, f"no compile-time parameter {unknown[0]!r}; there are: {known}"
            )
        return found

    def _parameter(self, importer: StatementImporter, argument: ast.arg) -> Value:
        annotation = _annotation(importer, argument)
        with importer.at(argument):
            match annotation:
                case DType():
                    return importer.b.scalar(argument.arg, annotation)
                case ArrayAnnotation():
                    size = importer.size
                    strides = annotation.strides
                    return importer.b.array(
                        argument.arg,
                        annotation.dtype,
                        [None if each is None else size(each) for each in annotation.shape],
                        access=annotation.access,
                        strides=None if strides is None else [size(each) for each in strides],
                        alignment=annotation.alignment,
                    )
                case _:
                    raise importer.frame.source.refuse(
                        argument, f"parameter {argument.arg!r} must be a dtype, Array, Out, InOut, "
                        f"Raw or Const, got {importer.describe(annotation)}",
                    )  # fmt: skip


def kernel(
    *,
    level: Level,
    grid: Sequence[SizeLike],
    workgroup_size: int | str | None = None,
    fastmath: Sequence[str] = (),
    index_bits: int = 64,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Mark a function as a kernel.

    Args:
        level: ``lane`` for SPMD code, ``tile`` for workgroup-uniform code over tiles.
        grid: Workgroups along x, y, z: sizes over integer parameters and Const ones.
        workgroup_size: Invocations, or the name of a Const parameter; None lets the target choose.
        fastmath: Subset of ``contract``, ``reassociate``, ``approximate``.
        index_bits: 32 promises that every index fits a u32.
    """
    options = _Options(
        level=level,
        grid=tuple(grid),
        workgroup_size=workgroup_size,
        fastmath=frozenset(fastmath),
        index_bits=index_bits,
    )
    return lambda function: Kernel(function, options)


def inline(function: Callable[..., Any]) -> Inline:
    """Mark a helper whose body is imported wherever a kernel calls it."""
    return Inline(function)


def _arguments(definition: ast.FunctionDef) -> list[ast.arg]:
    found = definition.args
    return [*found.posonlyargs, *found.args, *found.kwonlyargs]


def _defaults(definition: ast.FunctionDef) -> dict[str, ast.expr]:
    found = definition.args
    plain = [*found.posonlyargs, *found.args]
    last = plain[len(plain) - len(found.defaults) :]
    pairs = [
        *zip(last, found.defaults, strict=True),
        *zip(found.kwonlyargs, found.kw_defaults, strict=True),
    ]
    return {argument.arg: default for argument, default in pairs if default is not None}


def _annotation(importer: StatementImporter, argument: ast.arg) -> object:
    if argument.annotation is None:
        importer.refuse(argument, f"parameter {argument.arg!r} needs a type, such as i64")
    return importer.evaluate(argument.annotation)


def _const(importer: StatementImporter, argument: ast.arg) -> ConstAnnotation | None:
    """Return a compile-time parameter's annotation; others may themselves need those to be known."""
    match argument.annotation:
        case ast.Subscript(value=maker) if importer.evaluate(maker) is Const:
            found = _annotation(importer, argument)
            return found if isinstance(found, ConstAnnotation) else None
        case _:
            return None


def _suffix(constants: dict[str, object]) -> str:
    """Return what tells one specialisation's entry point from another's."""
    return "".join(f"_{name}{_word(item)}" for name, item in sorted(constants.items()))


def _word(item: object) -> str:
    match item:
        case DType(name=name):
            return name
        case int():
            return str(int(item)).replace("-", "m")
        case str() if item.isidentifier():
            return item
        case _:
            return hashlib.sha256(repr(item).encode()).hexdigest()[:8]
