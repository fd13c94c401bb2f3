"""Pieces that families share: rotary frequencies, weight tables, attention, MLPs."""
