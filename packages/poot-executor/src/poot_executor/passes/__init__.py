"""The planner's rewrites of a graph, each a small record that maps a graph to a graph."""

from poot_executor.passes.activations import RoundActivations, choose_activation
from poot_executor.passes.cleanup import InlineRegions, MergeEqual, RemoveDead
from poot_executor.passes.contractions import FormContractions, FormEmbeddings
from poot_executor.passes.epilogues import (
    AbsorbEpilogues,
    PairGates,
    SplitHalves,
    StackSiblings,
)
from poot_executor.passes.rounded import StoreRounded

__all__ = [
    "AbsorbEpilogues",
    "FormContractions",
    "FormEmbeddings",
    "InlineRegions",
    "MergeEqual",
    "PairGates",
    "RemoveDead",
    "RoundActivations",
    "SplitHalves",
    "StackSiblings",
    "StoreRounded",
    "choose_activation",
]
