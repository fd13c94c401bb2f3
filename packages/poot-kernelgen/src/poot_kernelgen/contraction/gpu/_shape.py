"""How contractions are cut for a GPU: nothing here changes a result but the lanes that split K."""

from __future__ import annotations

from dataclasses import dataclass

from poot_core import DeviceCaps
from poot_kernelgen.requests import ContractionRequest
from poot_quant import FORMATS

__all__ = ["Blocking", "choose_blocking", "k_lanes"]

_THREADS = 128
_MOST_LANES = 32
_TILES = {"one": (1, 1), "few": (8, 2), "some": (8, 4), "many": (8, 4)}
# Narrow subgroups are those of processors, which have few registers and slow compilers.
_SMALL_TILES = {"one": (1, 1), "few": (4, 2), "some": (4, 2), "many": (4, 2)}
_NARROW = 16
_AHEAD = (8, 2)
_AHEAD_PACKED = (4,)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of one kernel.

    Attributes:
        lanes: Lanes that split K: part of the arithmetic.
        threads: Invocations of a workgroup.
        rows: Activation rows of a subgroup's register tile.
        columns: Results of a row in it.
        ahead: Chunks of K that a lane loads before it adds them: as many as are left of these.
    """

    lanes: int
    threads: int
    rows: int
    columns: int
    ahead: tuple[int, ...]

    @property
    def workgroup_columns(self) -> int:
        """Results of a row that a workgroup computes."""
        return self.threads // self.lanes * self.columns


def k_lanes(caps: DeviceCaps) -> int:
    """Return how many lanes split K: a subgroup's, 32 at most."""
    return min(caps.subgroup_size, _MOST_LANES)


def choose_blocking(request: ContractionRequest, caps: DeviceCaps) -> Blocking:
    """Return the blocking of a request."""
    is_narrow = caps.subgroup_size < _NARROW
    rows, columns = (_SMALL_TILES if is_narrow else _TILES)[request.regime]
    if request.gated:
        columns = max(1, columns // 2)  # each is two weight rows
    threads = max(caps.subgroup_size, min(_THREADS, caps.max_workgroup))
    ahead = ()
    if request.regime == "one" and not is_narrow:
        ahead = _AHEAD_PACKED if request.weight.source in FORMATS else _AHEAD
    return Blocking(k_lanes(caps), threads, rows, columns, ahead)
