"""Coverage-guided fuzzing of both readers; run by hand where atheris is installed.

    python packages/poot-load/tests/fuzz/fuzz_readers.py -max_total_time=600

The first byte of an input picks the format. Anything but a checkpoint or a CheckpointError is a find.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed: pip install atheris (Linux, CPython up to 3.13)")

with atheris.instrument_imports():
    from poot_core import CheckpointError
    from poot_load import open_checkpoint

FOLDER = Path(tempfile.mkdtemp(prefix="poot-fuzz-"))
(FOLDER / "config.json").write_text('{"model_type": "llama"}')


def one_input(data: bytes) -> None:
    """Open the bytes as a checkpoint and touch what it holds."""
    name = "a.gguf" if data[:1] < b"\x80" else "a.safetensors"
    path = FOLDER / name
    path.write_bytes(data[1:])
    try:
        with open_checkpoint(path) as checkpoint:
            for tensor in checkpoint.weights.names():
                checkpoint.weights.raw(tensor)
            if (tokens := checkpoint.tokenizer_data) is not None:
                tokens.token_bytes(0)
    except CheckpointError:
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
