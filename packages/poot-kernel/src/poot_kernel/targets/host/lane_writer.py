"""Text of one LLVM function under construction: instructions, blocks, declarations, metadata."""

from __future__ import annotations

from poot_kernel.targets.host.math import math_function

__all__ = ["LaneWriter"]


class LaneWriter:
    """Appends instructions; every method that gives a value returns its SSA name.

    Attributes:
        block: Label of the block that instructions are appended to, for phis.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.block = "entry"
        self._next = 0
        self._declarations: dict[str, None] = {}
        self._functions: dict[str, str] = {}
        self._metadata: list[str] = []
        self._globals: list[str] = []

    # ---- instructions

    def fresh(self, hint: str = "v") -> str:
        """Return an unused name without its sigil."""
        self._next += 1
        return f"{hint}{self._next}"

    def emit(self, instruction: str) -> str:
        """Append an instruction with a result."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, name: str) -> None:
        """End the block with a jump."""
        self.do(f"br label %{name}")

    def branch_if(self, condition: str, then: str, otherwise: str) -> None:
        """End the block with a choice."""
        self.do(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def reserve(self) -> int:
        """Append a line to be written later; return its place."""
        self.lines.append("")
        return len(self.lines) - 1

    def mark(self) -> tuple[int, str]:
        """Return a point to go back to with ``rewind``."""
        return len(self.lines), self.block

    def rewind(self, mark: tuple[int, str]) -> None:
        """Drop everything since a mark."""
        del self.lines[mark[0] :]
        self.block = mark[1]

    # ---- calls

    def intrinsic(self, name: str, result: str, operands: list[tuple[str, str]]) -> str:
        """Emit a call to an intrinsic, spelled in full; operands are (type, value)."""
        types = ", ".join(kind for kind, _ in operands)
        self._declarations[f"declare {result} @{name}({types})"] = None
        call = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in operands)})"
        if result == "void":
            self.do(call)
            return ""
        return self.emit(call)

    def math(self, name: str, width: int, *operands: str) -> str:
        """Emit a call to one of poot's own f32 functions."""
        symbol, text, declarations = math_function(name, width)
        if symbol not in self._functions:
            self._functions[symbol] = text
            self._declarations.update(dict.fromkeys(sorted(declarations)))
        kind = "float" if width == 1 else f"<{width} x float>"
        return self.emit(f"call {kind} {symbol}({', '.join(f'{kind} {x}' for x in operands)})")

    # ---- module parts

    def constant_table(self, kind: str, elements: str) -> str:
        """Add a constant array and return its symbol."""
        symbol = f"@poot.table{len(self._globals)}"
        self._globals.append(f"{symbol} = internal unnamed_addr constant {kind} {elements}")
        return symbol

    def metadata(self, text: str) -> str:
        """Add a metadata node and return its reference; ``$`` stands for the reference itself."""
        reference = f"!{len(self._metadata)}"
        self._metadata.append(f"{reference} = {text.replace('$', reference)}")
        return reference

    def module(self, signature: str) -> str:
        """Return the module's text around the finished function."""
        return "\n".join(
            [
                *self._globals,
                *self._declarations,
                *self._functions.values(),
                f"define {signature} {{",
                "entry:",
                *self.lines,
                "}",
                *self._metadata,
                "",
            ]
        )
