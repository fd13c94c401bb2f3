"""Products whose sums are cut into chunks of k, by a whole workgroup: the shared ring for each chunk."""

from __future__ import annotations

from typing import cast

from poot_core import UnsupportedError, f32
from poot_kernel.ir.core import Op
from poot_kernel.targets.common.control import pipeline_schedule
from poot_kernel.targets.common.lowering import Lowering
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.common.tiles import FragmentTile, Tile, UniformTile

__all__ = ["CHUNK", "ChunkedProducts", "is_chunked"]

CHUNK = 1024


def is_chunked(op: Op) -> bool:
    """Whether a pipeline's products are ``k16_chunk1024``.

    Raises:
        UnsupportedError: If only some of them are.
    """
    found = {
        o.attributes["signature"] == "k16_chunk1024"
        for o in op.regions[1].walk()
        if o.opcode == "mma"
    }
    if len(found) > 1:
        raise UnsupportedError("a pipeline mixes products in chunks with others")
    return found == {True}


class ChunkedProducts(FragmentProducts):
    """Runs a pipeline once for each chunk and adds the sums in order."""

    signatures = (*FragmentProducts.signatures, "k16_chunk1024")

    def pipeline(self, low: Lowering, op: Op) -> bool:
        """Lower a pipeline whose products count chunks."""
        if not is_chunked(op):
            return False
        machine, ops = low.machine, low.arithmetic
        lower, upper, step = op.operands[:3]
        start, end = low.index(lower), low.index(upper)
        initial = op.operands[3:]
        layouts = [low.layouts[v] for v in op.results]
        given = [low.get(v) for v in initial]
        totals = [
            [machine.variable(x) for x in cast(Tile, v).fragment(low, layout).elements(low)]
            for v, layout in zip(given, layouts, strict=True)
        ]
        counter = machine.variable(start)
        for value in initial:
            shape = cast(Tile, low.get(value)).shape
            low.set(value, UniformTile(shape, machine.constant(0, f32)))

        def turn() -> None:
            begin = machine.read(counter)
            following = ops.add(begin, CHUNK)
            low.set(lower, begin)
            low.set(upper, ops.integer("min", following, end))
            pipeline_schedule(low, op)
            for value, variables, layout in zip(op.results, totals, layouts, strict=True):
                part = cast(Tile, low.get(value)).fragment(low, layout).elements(low)
                for variable, x in zip(variables, part, strict=True):
                    machine.assign(variable, machine.binary("add", machine.read(variable), x))
            machine.assign(counter, following)

        machine.loop(lambda: machine.compare("lt", machine.read(counter), end), turn)
        low.set(lower, start)
        low.set(upper, end)
        for value, found in zip(initial, given, strict=True):
            low.set(value, found)
        for value, variables, layout in zip(op.results, totals, layouts, strict=True):
            low.set(value, FragmentTile(layout, f32, [machine.read(v) for v in variables]))
        del step
        return True
