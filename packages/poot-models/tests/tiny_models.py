"""Tiny checkpoints held in memory, and running one sequence of a model through the oracle.

``data/`` holds copies of random checkpoints whose ``expected.json`` transformers 5.24 made in f32 by
full recomputation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poot_core import dtype_of, f32
from poot_eval import OracleProgram
from poot_graph_ir import TraceOptions
from poot_load import open_checkpoint
from poot_models import Model, load_family

DATA = Path(__file__).parent / "data"
NAMES = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir())


@dataclass(frozen=True)
class Info:
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Tensors:
    """Stands for a WeightStore: arrays by name."""

    arrays: dict[str, np.ndarray]

    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def info(self, name: str) -> Info:
        return Info(self.arrays[name].shape, dtype_of(self.arrays[name]))

    def array(self, name: str) -> np.ndarray:
        return self.arrays[name]


@dataclass(frozen=True)
class Tiny:
    """Stands for a Checkpoint whose configuration and tensors a test changes."""

    config: dict[str, Any]
    weights: Tensors

    @property
    def architecture(self) -> str:
        return self.config["model_type"]

    def with_config(self, **changes: Any) -> Tiny:
        return replace(self, config={**self.config, **changes})

    def with_tensors(self, changes: dict[str, np.ndarray | None]) -> Tiny:
        arrays = {**self.weights.arrays, **changes}
        return replace(self, weights=Tensors({k: a for k, a in arrays.items() if a is not None}))


def read_tiny(name: str) -> Tiny:
    with open_checkpoint(DATA / name) as checkpoint:
        store = checkpoint.weights
        arrays = {key: np.array(store.array(key)) for key in store.names()}
        return Tiny(dict(checkpoint.config), Tensors(arrays))


def read_expected(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "expected.json").read_text())


class Runner:
    """One sequence through the oracle, over blocks that are neither first nor in order."""

    def __init__(self, checkpoint: Any, *, block_size: int = 4, context: int = 64) -> None:
        self.model: Model = load_family(checkpoint)
        self.block_size = block_size
        blocks = -(-context // block_size)
        options = TraceOptions(
            kv_dtype=f32, block_size=block_size, num_blocks=blocks + 3, max_blocks_per_row=blocks
        )
        self.program = OracleProgram(self.model.trace(options), checkpoint.weights.array)
        order = np.random.default_rng(7).permutation(blocks + 3)
        self.table = order[:blocks].astype(np.int32)
        self.length = 0

    def step(self, ids: list[int], wanted: list[int]) -> np.ndarray:
        """Append tokens and return the logits (len(wanted), vocab_size) of some of them."""
        positions = np.arange(self.length, self.length + len(ids), dtype=np.int32)
        self.length += len(ids)
        slots = self.table[positions // self.block_size] * self.block_size
        inputs = {
            "token_ids": np.array(ids, np.int32),
            "positions": positions,
            "rows": np.zeros(len(ids), np.int32),
            "sequence_lengths": np.array([self.length], np.int32),
            "block_tables": self.table[None],
            "slot_mapping": (slots + positions % self.block_size).astype(np.int32),
            "logit_positions": np.array(wanted, np.int32),
        }
        return self.program.step(inputs)["logits"]
