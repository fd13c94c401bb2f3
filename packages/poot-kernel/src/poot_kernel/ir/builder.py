"""The public builder: parameters, then operations, then a verified kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poot_core import DType, VerifyError, i64, u8
from poot_kernel.ir._build_control import ControlBuilder
from poot_kernel.ir.core import KernelFunction, Level, Region, Value
from poot_kernel.ir.sizes import SizeLike, as_size
from poot_kernel.ir.types import Access, ArrayType, ScalarType
from poot_kernel.ir.verifier import verify_kernel

__all__ = ["IRBuilder"]


class IRBuilder(ControlBuilder):
    """Builds one kernel; helper functions are Python functions that take the builder.

    >>> from poot_core import f32
    >>> b = IRBuilder("double", level="lane", grid=["ceildiv(n, 1024)"])
    >>> n, x = b.scalar("n"), b.array("x", f32, ["n"], access="rw")
    >>> start = b.mul(b.workgroup_id(), 1024)
    >>> with b.foreach(start, b.minimum(b.add(start, 1024), n)) as loop:
    ...     value = b.load(x, loop.index)
    ...     b.store(x, loop.index, b.add(value, value))
    >>> b.finish().name
    'double'
    """

    def __init__(
        self,
        name: str,
        *,
        level: Level,
        grid: Sequence[SizeLike],
        workgroup_size: int | None = None,
        fastmath: Iterable[str] = (),
        index_bits: int = 64,
    ) -> None:
        self.kernel = KernelFunction(
            name=name,
            body=Region(),
            level=level,
            grid=tuple(as_size(size) for size in grid),
            workgroup_size=workgroup_size,
            fastmath=frozenset(fastmath),
            index_bits=index_bits,
        )
        super().__init__(self.kernel.body)

    def scalar(self, name: str, dtype: DType = i64) -> Value:
        """Declare the next parameter: a uniform scalar."""
        return self._parameter(Value(ScalarType(dtype), name))

    def array(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[SizeLike | None],
        *,
        access: Access = "r",
        strides: Sequence[SizeLike] | None = None,
        alignment: int | None = None,
    ) -> Value:
        """Declare the next parameter: an array in global memory.

        Args:
            name: Parameter name.
            dtype: Element type.
            shape: Extents; None for an unknown first one.
            access: What the kernel does with it.
            strides: Strides in elements; row-major without.
            alignment: Bytes the base is aligned by; the element's size without.
        """
        found = ArrayType(
            dtype,
            tuple(None if size is None else as_size(size) for size in shape),
            None if strides is None else tuple(as_size(size) for size in strides),
            access,
            dtype.itemsize if alignment is None else alignment,
        )
        return self._parameter(Value(found, name))

    def raw(self, name: str, *, access: Access = "r", alignment: int = 64) -> Value:
        """Declare the next parameter: bytes of unknown length, such as packed weights."""
        return self.array(name, u8, [None], access=access, alignment=alignment)

    def finish(self) -> KernelFunction:
        """Verify and return the kernel.

        Raises:
            VerifyError: If it breaks a rule.
        """
        verify_kernel(self.kernel)
        return self.kernel

    def _parameter(self, value: Value) -> Value:
        if self.kernel.body.operations:
            raise VerifyError(f"declare parameter {value.name!r} before the first operation")
        self.kernel.body.arguments.append(value)
        return value
