"""Runners: how each engine is started, and how what it prints becomes metrics."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness.runners.base import NotOffered, Plan, Runner
from benchmarks.harness.runners.llama_cpp import LlamaCpp
from benchmarks.harness.runners.poot import Poot
from benchmarks.harness.runners.torch import Torch

__all__ = ["RUNNERS", "NotOffered", "Plan", "Runner"]

RUNNERS: Mapping[str, Runner] = {"poot": Poot(), "llama_cpp": LlamaCpp(), "torch": Torch()}
