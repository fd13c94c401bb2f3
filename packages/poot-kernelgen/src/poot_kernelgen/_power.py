"""Numbers that kernels of the sampler and their meaning share."""

__all__ = ["POWER_COEFFICIENTS"]

POWER_COEFFICIENTS = (2977031600, 1031582456, 237543470, 39582419, 4073454)
"""``2**-x = 1 - x * (c0 - x * (c1 - x * (c2 - x * (c3 - x * c4))))`` within 7e-8 over [0, 1], the
coefficients in units of 2**-32: a minimax fit that is exact at 0 and 1."""
