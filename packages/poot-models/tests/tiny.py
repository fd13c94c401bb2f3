"""Tiny checkpoints, and running them through the oracle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from poot_core import bf16, f32
from poot_eval import OracleProgram
from poot_graph_ir import TraceOptions
from poot_models import Model, load_family

DATA = Path(__file__).parent / "data"
DTYPES = {"BF16": bf16, "F32": f32}


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    dtype: Any


@dataclass
class Tensors:
    """Stands for a WeightStore; arrays by name."""

    arrays: dict[str, np.ndarray]
    dtypes: dict[str, Any]

    def names(self):
        return tuple(self.arrays)

    def info(self, name: str) -> Info:
        return Info(self.arrays[name].shape, self.dtypes[name])

    def array(self, name: str) -> np.ndarray:
        return self.arrays[name]


@dataclass
class Tiny:
    """Stands for a Checkpoint."""

    config: dict[str, Any]
    weights: Tensors
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return self.config["model_type"]


def open_tiny(name: str, root: Path = DATA) -> Tiny:
    folder = root / name
    blob = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    arrays, dtypes = {}, {}
    for key, entry in header.items():
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        dtypes[key] = DTYPES[entry["dtype"]]
        arrays[key] = np.frombuffer(blob[start:end], dtypes[key].numpy).reshape(entry["shape"])
    return Tiny(
        json.loads((folder / "config.json").read_text()),
        Tensors(arrays, dtypes),
        json.loads((folder / "expected.json").read_text()),
    )


class Runner:
    """One sequence through the oracle, over blocks that are neither first nor in order."""

    def __init__(self, checkpoint: Tiny, *, block_size: int = 4, context: int = 64) -> None:
        self.model: Model = load_family(checkpoint)
        self.block_size = block_size
        blocks = -(-context // block_size)
        options = TraceOptions(
            kv_dtype=f32, block_size=block_size, num_blocks=blocks + 3, max_blocks_per_row=blocks
        )
        graph = self.model.trace(options)
        self.program = OracleProgram(graph, checkpoint.weights.array)
        self.table = np.random.default_rng(7).permutation(blocks + 3)[:blocks].astype(np.int32)
        self.length = 0

    def step(self, ids: list[int], wanted: list[int]) -> np.ndarray:
        positions = np.arange(self.length, self.length + len(ids), dtype=np.int32)
        self.length += len(ids)
        slots = self.table[positions // self.block_size] * self.block_size
        out = self.program.step(
            {
                "token_ids": np.array(ids, np.int32),
                "positions": positions,
                "rows": np.zeros(len(ids), np.int32),
                "sequence_lengths": np.array([self.length], np.int32),
                "block_tables": self.table[None],
                "slot_mapping": (slots + positions % self.block_size).astype(np.int32),
                "logit_positions": np.array(wanted, np.int32),
            }
        )
        return out["logits"]
