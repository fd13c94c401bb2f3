"""What a GPU target provides to the shared lowering: a small SIMT machine.

Every value is a boolean, a 32-bit word, a 64-bit word or an f32. Narrower integers are words kept
in their range, 16-bit floats are words with the bits below and zeros above.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from poot_core import DType, UnsupportedError, boolean, f32, i64, u64

__all__ = ["Kind", "Machine", "Register", "SpaceName", "kind_of"]

Kind = Literal["boolean", "word", "long", "float"]
SpaceName = Literal["global", "shared"]


def kind_of(dtype: DType) -> Kind:
    """Return the machine's form of an element type."""
    if dtype is boolean:
        return "boolean"
    if dtype is f32:
        return "float"
    return "long" if dtype in (i64, u64) else "word"


@dataclass(frozen=True, slots=True)
class Register:
    """A value in the generated code.

    Attributes:
        code: How the target's text names it.
        dtype: Element type it stands for.
        literal: Its value when known.
        wide: The f32 that a 16-bit float was rounded from, so that pairs convert in one step.
    """

    code: str
    dtype: DType
    literal: int | float | None = None
    wide: Register | None = None


class Machine(ABC):
    """Emits one kernel's code.

    Attributes:
        subgroup_size: Lanes.
        has_async_copy: Whether global memory can be copied to shared memory in the background.
        shared_limit: Bytes of shared memory for a workgroup.
    """

    subgroup_size: int = 32
    has_async_copy: bool = False
    shared_limit: int = 48 * 1024
    is_approximate: bool = False
    is_contracted: bool = False

    @abstractmethod
    def constant(self, value: float, dtype: DType) -> Register:
        """Return a literal."""

    @abstractmethod
    def binary(self, name: str, a: Register, b: Register) -> Register:
        """Return a result of add sub mul div rem min max and or xor shl shr mul_high."""

    @abstractmethod
    def unary(self, name: str, x: Register) -> Register:
        """Return a result of neg abs exp2 log2 sqrt rsqrt sin cos floor ceil trunc rint not."""

    @abstractmethod
    def fma(self, a: Register, b: Register, c: Register) -> Register:
        """Return a * b + c of f32, rounded once."""

    def opaque(self, x: Register) -> Register:
        """Return an f32 that the driver's compiler may not combine with what is done to it next."""
        return x

    @abstractmethod
    def dot4(self, a: Register, b: Register, acc: Register, signs: tuple[bool, bool]) -> Register:
        """Return acc plus four byte products."""

    @abstractmethod
    def compare(self, name: str, a: Register, b: Register) -> Register:
        """Return a boolean for eq ne lt le gt ge."""

    @abstractmethod
    def select(self, condition: Register, a: Register, b: Register) -> Register:
        """Return a or b."""

    @abstractmethod
    def convert(self, x: Register, dtype: DType) -> Register:
        """Return x as another dtype among words, longs and floats (16-bit floats too)."""

    @abstractmethod
    def reinterpret(self, x: Register, dtype: DType) -> Register:
        """Return the same 32 bits as another dtype."""

    @abstractmethod
    def pack_halves(self, low: Register, high: Register) -> Register:
        """Return the u32 that holds two 16-bit floats."""

    @abstractmethod
    def thread(self) -> Register:
        """Return the invocation's number in its workgroup (u32)."""

    @abstractmethod
    def shared_base(self) -> Register:
        """Return where shared memory begins (u32)."""

    @abstractmethod
    def workgroup(self, axis: int) -> Register:
        """Return the workgroup's coordinate (u32)."""

    @abstractmethod
    def num_workgroups(self, axis: int) -> Register:
        """Return the grid's extent (u32)."""

    @abstractmethod
    def load(
        self, space: SpaceName, address: Register, offset: int, dtype: DType, count: int
    ) -> list[Register]:
        """Return neighbouring elements at a byte address (shared: a byte offset)."""

    @abstractmethod
    def store(
        self, space: SpaceName, address: Register, offset: int, values: list[Register]
    ) -> None:
        """Write neighbouring elements."""

    @abstractmethod
    def barrier(self) -> None:
        """Order shared memory among the workgroup."""

    @abstractmethod
    def shuffle_xor(self, x: Register, mask: int) -> Register:
        """Return x of lane ^ mask."""

    def shuffle(self, x: Register, lane: Register) -> Register:
        """Return x of another lane, a u32; words and floats, in uniform control flow."""
        raise UnsupportedError(f"{type(self).__name__} does not shuffle by lane")

    def atomic(self, kind: str, space: SpaceName, address: Register, value: Register) -> Register:
        """Combine a word into memory, relaxed, and return the old one: add min max and or xor."""
        raise UnsupportedError(f"{type(self).__name__} has no atomic {kind!r}")

    def table(self, words: Sequence[int]) -> str:
        """Return a name for read-only u32 words that the code holds."""
        raise UnsupportedError(f"{type(self).__name__} holds no tables")

    def table_word(self, table: str, index: Register) -> Register:
        """Return a word of a table."""
        raise UnsupportedError(f"{type(self).__name__} holds no tables")

    @abstractmethod
    def variable(self, initial: Register) -> str:
        """Return a new variable."""

    @abstractmethod
    def read(self, variable: str) -> Register:
        """Return a variable's present value."""

    @abstractmethod
    def assign(self, variable: str, value: Register) -> None:
        """Set a variable."""

    @abstractmethod
    def loop(self, condition: Callable[[], Register], body: Callable[[], None]) -> None:
        """Emit a loop that runs while the condition holds."""

    @abstractmethod
    def branch(
        self,
        condition: Register,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        """Emit a branch."""

    @abstractmethod
    def at_entry(self) -> AbstractContextManager[None]:
        """Emit at the kernel's entry inside of the block, for values that threads keep."""

    def async_copy(
        self, destination: Register, offset: int, source: Register, valid: Register | None
    ) -> None:
        """Start copying 16 bytes to shared memory; zeros where ``valid`` is false."""
        raise NotImplementedError

    def async_commit(self) -> None:
        """End a group of copies."""
        return

    def async_wait(self, pending: int) -> None:
        """Wait until at most that many groups are in flight."""
        return
