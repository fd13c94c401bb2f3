"""The opcode table, and the one function that applies its rules."""

from __future__ import annotations

from collections.abc import Sequence

from poot_kernel.ir.core import Attribute, Region, Value
from poot_kernel.ir.opcodes_control import CONTROL_OPS
from poot_kernel.ir.opcodes_element import ELEMENT_OPS
from poot_kernel.ir.opcodes_invocation import INVOCATION_OPS
from poot_kernel.ir.opcodes_memory import MEMORY_OPS
from poot_kernel.ir.opcodes_tile import TILE_OPS
from poot_kernel.ir.specs import OpSpec, Request, RuleError
from poot_kernel.ir.types import Type

__all__ = ["OPCODES", "complete_attributes", "infer_results"]

OPCODES: dict[str, OpSpec] = {
    spec.name: spec
    for spec in (*ELEMENT_OPS, *MEMORY_OPS, *INVOCATION_OPS, *CONTROL_OPS, *TILE_OPS)
}


def complete_attributes(spec: OpSpec, given: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes in table order with defaults filled in.

    Raises:
        RuleError: If one is unknown or a required one is missing.
    """
    unknown = [name for name in given if name not in spec.attributes]
    if unknown:
        known = ", ".join(spec.attributes) or "none"
        raise RuleError(f"has no attribute {unknown[0]!r}; it takes: {known}")
    result: dict[str, Attribute] = {}
    for name, default in spec.attributes.items():
        value = given.get(name, default)
        if value is None:
            raise RuleError(f"needs attribute {name!r}")
        result[name] = value
    return result


def infer_results(
    spec: OpSpec,
    operands: Sequence[Value],
    attributes: dict[str, Attribute],
    regions: Sequence[Region],
) -> tuple[Type, ...]:
    """Return the result types of an operation.

    Args:
        spec: The opcode's facts.
        operands: Its operands.
        attributes: Its attributes, completed.
        regions: Its nested regions, finished.

    Raises:
        RuleError: If operands, attributes or regions break the opcode's rule.
    """
    if len(regions) != spec.num_regions:
        raise RuleError(f"has {spec.num_regions} regions, got {len(regions)}")
    for region in regions:
        if not region.operations or not _ends(region):
            raise RuleError("a region must end in yield or condition")
    return spec.rule(Request(operands, attributes, regions))


def _ends(region: Region) -> bool:
    return OPCODES[region.terminator.opcode].is_terminator
