"""Builder contexts for structured control flow; the operation is emitted when its block ends."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from poot_kernel.ir._build_tile import TileBuilder
from poot_kernel.ir._emitter import Emitter, Operand
from poot_kernel.ir.core import Region, Value
from poot_kernel.ir.types import INDEX, TokenType

__all__ = ["ControlBuilder", "IfContext", "LoopContext", "PipelineContext", "WhileContext"]


class _Context:
    def __init__(self, builder: Emitter) -> None:
        self._builder = builder
        self.results: list[Value] = []

    @property
    def result(self) -> Value:
        """The only result, after the block."""
        (value,) = self.results
        return value

    def yield_(self, *values: Value) -> None:
        """End the current region with these values."""
        self._builder.op("yield", values)


class LoopContext(_Context):
    """A ``for`` or ``foreach`` under construction: ``index`` and ``carried`` are its arguments."""

    def __init__(self, builder: Emitter, carried: Sequence[Value]) -> None:
        super().__init__(builder)
        self.index = Value(INDEX)
        self.carried = [Value(value.type) for value in carried]
        self.region = Region([self.index, *self.carried])


class IfContext(_Context):
    """An ``if`` under construction; an absent ``otherwise`` yields nothing."""

    def __init__(self, builder: Emitter) -> None:
        super().__init__(builder)
        self.regions = [Region(), Region()]

    @contextmanager
    def then(self) -> Generator[None]:
        """Emit what runs when the condition holds."""
        with self._builder.inserting(self.regions[0]):
            yield

    @contextmanager
    def otherwise(self) -> Generator[None]:
        """Emit what runs when it does not."""
        with self._builder.inserting(self.regions[1]):
            yield


class WhileContext(_Context):
    """A ``while`` under construction."""

    def __init__(self, builder: Emitter, carried: Sequence[Value]) -> None:
        super().__init__(builder)
        self.regions = [Region([Value(v.type) for v in carried]) for _ in range(2)]

    @contextmanager
    def condition(self) -> Generator[list[Value]]:
        """Emit the test over the carried values; end it with ``test``."""
        with self._builder.inserting(self.regions[0]) as region:
            yield region.arguments

    def test(self, condition: Value, *values: Value) -> None:
        """Go on while the condition holds, passing values (default: unchanged) to the body."""
        self._builder.op("condition", [condition, *(values or self.regions[0].arguments)])

    @contextmanager
    def body(self) -> Generator[list[Value]]:
        """Emit the body over the carried values; end it with ``yield_``."""
        with self._builder.inserting(self.regions[1]) as region:
            yield region.arguments


class PipelineContext(_Context):
    """A ``pipeline`` under construction: ``load`` comes first, its tiles feed ``compute``."""

    def __init__(self, builder: Emitter, carried: Sequence[Value]) -> None:
        super().__init__(builder)
        self.index = Value(INDEX)
        self.carried = [Value(value.type) for value in carried]
        self.tiles: list[Value] = []
        self.regions = [Region([self.index]), Region()]

    @contextmanager
    def load(self) -> Generator[Value]:
        """Emit the load part over ``index``; yield tiles or tokens."""
        with self._builder.inserting(self.regions[0]):
            yield self.index
        moved = [value.type for value in self.regions[0].terminator.operands]
        self.tiles = [Value(t.tile if isinstance(t, TokenType) else t) for t in moved]

    @contextmanager
    def compute(self) -> Generator[list[Value]]:
        """Emit the compute part over ``index``, ``carried`` and ``tiles``; yield the carried."""
        self.index = Value(INDEX)
        self.regions[1].arguments = [self.index, *self.carried, *self.tiles]
        with self._builder.inserting(self.regions[1]):
            yield self.tiles


def _close(region: Region, builder: Emitter) -> None:
    ended = region.operations and region.terminator.opcode in {"yield", "condition"}
    if not ended:
        with builder.inserting(region):
            builder.op("yield")


class ControlBuilder(TileBuilder):
    """Loops, branches and pipelines."""

    @contextmanager
    def for_(
        self,
        lower: Operand,
        upper: Operand,
        step: Operand = 1,
        carried: Sequence[Value] = (),
        *,
        unroll: int = 1,
        static: bool = False,
        dealt: bool = False,
    ) -> Generator[LoopContext]:
        """Count from lower to upper; without carried values no ``yield_`` is needed.

        Turns of a ``dealt`` loop are independent: subgroups may share them.
        """
        bounds = [self.index(lower), self.index(upper), self.index(step)]
        loop = LoopContext(self, carried)
        with self.inserting(loop.region):
            yield loop
        _close(loop.region, self)
        operands = [*bounds, *carried]
        loop.results = self.op(
            "for", operands, [loop.region], unroll=unroll, static=static, dealt=dealt
        )

    @contextmanager
    def foreach(
        self,
        lower: Operand,
        upper: Operand,
        carried: Sequence[Value] = (),
        *,
        scope: str = "workgroup",
        unroll: int = 1,
    ) -> Generator[LoopContext]:
        """Deal indices to the invocations of a workgroup or subgroup."""
        bounds = [self.index(lower), self.index(upper)]
        loop = LoopContext(self, carried)
        with self.inserting(loop.region):
            yield loop
        _close(loop.region, self)
        operands = [*bounds, *carried]
        loop.results = self.op("foreach", operands, [loop.region], scope=scope, unroll=unroll)

    @contextmanager
    def while_(self, carried: Sequence[Value]) -> Generator[WhileContext]:
        """Repeat while a condition over carried values holds."""
        loop = WhileContext(self, carried)
        yield loop
        loop.results = self.op("while", carried, loop.regions)

    @contextmanager
    def if_(self, condition: Value) -> Generator[IfContext]:
        """Branch; both sides yield the same types."""
        branch = IfContext(self)
        yield branch
        for region in branch.regions:
            _close(region, self)
        branch.results = self.op("if", [condition], branch.regions)

    @contextmanager
    def pipeline(
        self,
        lower: Operand,
        upper: Operand,
        step: Operand = 1,
        carried: Sequence[Value] = (),
        *,
        stages: int = 2,
    ) -> Generator[PipelineContext]:
        """A k loop with a load part that may run ahead of its compute part."""
        bounds = [self.index(lower), self.index(upper), self.index(step)]
        pipe = PipelineContext(self, carried)
        yield pipe
        pipe.results = self.op("pipeline", [*bounds, *carried], pipe.regions, stages=stages)
