"""Attention over paged keys and values: the main kernel over a work list, and the merge."""

from poot_kernelgen.attention._requests import (
    generate_attend,
    joined_tile_for,
    query_tiles_for,
    shortest_split_for,
)

__all__ = ["generate_attend", "joined_tile_for", "query_tiles_for", "shortest_split_for"]
