"""Weights by name: zero-copy views of mapped files, packed as stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_core import CheckpointError, DType
from poot_load._mapping import MappedFile
from poot_quant import QuantFormat, decode

__all__ = ["StoredTensor", "TensorInfo", "WeightStore"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a stored tensor is.

    Attributes:
        name: Name under Hugging Face's scheme.
        shape: Row-major, outermost first; of elements, also when packed.
        dtype: Element type, or the packed format.
        nbytes: Bytes as stored.
        file: The file that holds it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType | QuantFormat
    nbytes: int
    file: Path

    @property
    def is_packed(self) -> bool:
        """Whether the elements are in a packed format."""
        return isinstance(self.dtype, QuantFormat)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's description and the place where it lies."""

    info: TensorInfo
    file: MappedFile
    offset: int


class WeightStore:
    """Tensors of one or several mapped files; a context manager.

    Views stay valid after :meth:`close` and keep their file mapped; new ones are refused.
    """

    def __init__(self, tensors: Iterable[StoredTensor]) -> None:
        self._tensors: Mapping[str, StoredTensor] = {t.info.name: t for t in tensors}

    def __enter__(self) -> WeightStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def names(self) -> tuple[str, ...]:
        """Return the names in file order."""
        return tuple(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Return what the tensor is.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        return self._find(name).info

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the stored bytes, a read-only view of the file: (nbytes,), uint8.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        found = self._find(name)
        return found.file.bytes[found.offset : found.offset + found.info.nbytes]

    def rows(self, name: str) -> NDArray[np.uint8]:
        """Return the stored bytes by row, a read-only view: (*shape[:-1], bytes of a row), uint8.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        info = self.info(name)
        lead = info.shape[:-1]
        return self.raw(name).reshape(*lead, info.nbytes // max(1, prod(lead)))

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values in their shape: a read-only view, or decoded float32 when packed.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        info = self.info(name)
        if isinstance(info.dtype, QuantFormat):
            return decode(info.dtype, self.rows(name))
        return self.raw(name).view(info.dtype.numpy).reshape(info.shape)

    def release(self, name: str) -> None:
        """Let the kernel drop the tensor's pages; whoever reads it again loads them again.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        found = self._find(name)
        found.file.release(found.offset, found.offset + found.info.nbytes)

    def close(self) -> None:
        """Forget the tensors and unmap each file once no view of it is left."""
        files = {id(tensor.file): tensor.file for tensor in self._tensors.values()}
        self._tensors = {}
        for file in files.values():
            file.close()

    def _find(self, name: str) -> StoredTensor:
        if (found := self._tensors.get(name)) is None:
            near = get_close_matches(name, self._tensors, n=3)
            hint = f"; similar are {near}" if near else ""
            raise CheckpointError(
                f"no tensor {name!r} among the checkpoint's {len(self._tensors)}{hint}", field=name
            )
        return found
