"""poot's kernels: hand-written ones and generators, asked for by typed requests."""

from poot_kernelgen.requests import (
    Activation,
    ArgmaxRequest,
    AttendRequest,
    ContractionRequest,
    Epilogue,
    GatherRequest,
    KvLayout,
    KvWriteRequest,
    PackRequest,
    Regime,
    Request,
    RowInput,
    RowNode,
    RowOutput,
    RowProgram,
    WeightLayout,
)

__all__ = [
    "Activation",
    "ArgmaxRequest",
    "AttendRequest",
    "ContractionRequest",
    "Epilogue",
    "GatherRequest",
    "KvLayout",
    "KvWriteRequest",
    "PackRequest",
    "Regime",
    "Request",
    "RowInput",
    "RowNode",
    "RowOutput",
    "RowProgram",
    "WeightLayout",
]
