"""List the tensors of a checkpoint: ``uv run python inspect_checkpoint.py MODEL``, poot-load alone."""

from __future__ import annotations

import sys

from poot_load import open_checkpoint


def main() -> None:
    """Print one line a tensor, and the size of all."""
    with open_checkpoint(sys.argv[1]) as checkpoint:
        total = 0
        for name in checkpoint.weights.names():
            info = checkpoint.weights.info(name)
            total += info.nbytes
            print(f"{getattr(info.dtype, 'name', info.dtype):6} {info.shape!s:18} {name}")
        print(f"{checkpoint.architecture}: {total / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    main()
