"""Choose what each product's left operand is rounded to, and round it where it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from poot_core import bf16, i8
from poot_executor._rewrite import fresh_values, leading_symbol
from poot_executor._weights import Matrix
from poot_graph_ir import Equation, Graph, TensorType, Value
from poot_kernelgen import WITH_RESIDUAL, Activation, takes_lifted

__all__ = ["RoundActivations", "choose_activation"]


def choose_activation(
    matrix: Matrix, precision: str, features: frozenset[str], *, residual: bool = False
) -> Activation:
    """Return the activation type of a weight: from its format, shape and device, never from T.

    Args:
        matrix: The weight.
        precision: ``f32`` or ``auto``.
        features: Instruction-set extensions of the target.
        residual: Whether 8-bit operands keep what rounding lost where there are outliers.
    """
    if precision == "f32" or matrix.source in {"f32", "f16"}:
        return "f32"
    if matrix.source == "bf16":
        # Products in vectors take pairs of elements, those of matrix instructions steps of 64 k.
        in_pairs = "avx512bf16" in features and matrix.k % 2 == 0
        in_steps = "mma-k16" in features and matrix.k % 64 == 0
        return "bf16" if in_pairs or in_steps else "f32"
    if matrix.k % 32:
        return "f32"
    if not residual:
        return "i8"
    # One instruction multiplies unsigned by signed bytes there: what is signed may be chosen.
    return "u8r" if "avx512vnni" in features and takes_lifted(matrix.source) else "i8r"


@dataclass(frozen=True, slots=True)
class RoundActivations:
    """Add ``quantise`` equations (attribute ``kind``) before products with rounded operands.

    Attributes:
        choose: Returns the activation type of a weight.
        outliers: From how many times a row's root mean square on a block keeps what rounding lost:
            before a product whose result is used as it is, before one whose result is added to a
            stream, which is a small part of a large sum and bears more noise, and before one for
            wanted positions alone (logits), which a prompt has few of.
    """

    choose: Callable[[Matrix], Activation]
    outliers: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph in which each contraction has the attribute ``activation``."""
        fresh = fresh_values(graph)
        rounded: dict[tuple[int, str, float], Value] = {}
        equations: list[Equation] = []
        for equation in graph.equations:
            if equation.op != "contract":
                equations.append(equation)
                continue
            matrix: Any = equation.attributes["matrix"]
            activation = self.choose(matrix)
            x = equation.inputs[0]
            if activation != "f32":
                outlier = self._outlier(equation) if activation in WITH_RESIDUAL else 0.0
                key = (x.id, activation, outlier)
                if key not in rounded:
                    kind = TensorType(x.shape, bf16 if activation == "bf16" else i8)
                    rounded[key] = fresh(kind)
                    equations.append(
                        Equation(
                            "quantise", (x,), (rounded[key],),
                            {"kind": activation, "outlier": outlier}, None,
                            equation.scope, equation.location,
                        )
                    )  # fmt: skip
                x = rounded[key]
            attributes = {**equation.attributes, "activation": activation}
            inputs = (x, *equation.inputs[1:])
            equations.append(replace(equation, inputs=inputs, attributes=attributes))
        return replace(graph, equations=tuple(equations))

    def _outlier(self, equation: Equation) -> float:
        if leading_symbol(equation.inputs[0]) == "L":
            return self.outliers[2]
        epilogue: Any = equation.attributes.get("epilogue")
        return self.outliers[epilogue is not None and "full" in epilogue.inputs]
