"""poot's kernels: hand-written ones and generators, asked for by typed requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poot_kernelgen.requests import (
    EIGHT_BIT,
    SAMPLE_FIELDS,
    WITH_RESIDUAL,
    Activation,
    ArgmaxRequest,
    AttendRequest,
    ContractionRequest,
    CountRequest,
    Epilogue,
    FeedRequest,
    GatherRequest,
    KvLayout,
    PackRequest,
    Regime,
    Request,
    RowInput,
    RowNode,
    RowOutput,
    RowProgram,
    SampleRequest,
    WeightLayout,
)

if TYPE_CHECKING:
    from poot_kernelgen._generate import GeneratedKernel, generate
    from poot_kernelgen._sample_words import sample_words, weight_scale
    from poot_kernelgen.attention import joined_tile_for, query_tiles_for, shortest_split_for
    from poot_kernelgen.contraction import (
        flight_of,
        pack_table,
        packed_bytes,
        takes_lifted,
        weight_layout_for,
    )

__all__ = [
    "EIGHT_BIT",
    "SAMPLE_FIELDS",
    "WITH_RESIDUAL",
    "Activation",
    "ArgmaxRequest",
    "AttendRequest",
    "ContractionRequest",
    "CountRequest",
    "Epilogue",
    "FeedRequest",
    "GatherRequest",
    "GeneratedKernel",
    "KvLayout",
    "PackRequest",
    "Regime",
    "Request",
    "RowInput",
    "RowNode",
    "RowOutput",
    "RowProgram",
    "SampleRequest",
    "WeightLayout",
    "flight_of",
    "generate",
    "joined_tile_for",
    "pack_table",
    "packed_bytes",
    "query_tiles_for",
    "sample_words",
    "shortest_split_for",
    "takes_lifted",
    "weight_layout_for",
    "weight_scale",
]

_LAZY = {
    "GeneratedKernel": "poot_kernelgen._generate",
    "flight_of": "poot_kernelgen.contraction",
    "generate": "poot_kernelgen._generate",
    "joined_tile_for": "poot_kernelgen.attention",
    "pack_table": "poot_kernelgen.contraction",
    "packed_bytes": "poot_kernelgen.contraction",
    "query_tiles_for": "poot_kernelgen.attention",
    "sample_words": "poot_kernelgen._sample_words",
    "shortest_split_for": "poot_kernelgen.attention",
    "takes_lifted": "poot_kernelgen.contraction",
    "weight_layout_for": "poot_kernelgen.contraction",
    "weight_scale": "poot_kernelgen._sample_words",
}


def __getattr__(name: str) -> Any:
    """Import the generators when they are first asked for: a warm start never does."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
