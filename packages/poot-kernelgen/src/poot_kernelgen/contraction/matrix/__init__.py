"""Contractions of 16-bit weights on matrix instructions, one signature for every number of rows."""

from poot_kernelgen.contraction.matrix._flight import flight_of
from poot_kernelgen.contraction.matrix._multiply import FEATURE, build_matrix, suits_matrix

__all__ = ["FEATURE", "build_matrix", "flight_of", "suits_matrix"]
