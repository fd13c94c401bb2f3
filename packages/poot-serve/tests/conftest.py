import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# importlib mode puts no test folder on the path; the names of our helpers are unique.
sys.path.insert(0, str(Path(__file__).parent))

from serve_process import CHECKPOINT, Server, start, stop, write_tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-llama"
    shutil.copytree(CHECKPOINT, folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[Server]:
    running = start(str(checkpoint), "--backend", "cpu", "--precision", "f32")
    yield running
    stop(running)


@pytest.fixture(scope="session")
def slow_server(checkpoint: Path) -> Iterator[Server]:
    """Takes some ten milliseconds a token, so that there is time to disturb it."""
    running = start(str(checkpoint), "--backend", "oracle", "--precision", "f32")
    yield running
    stop(running)


@pytest.fixture(scope="session")
def ids_server() -> Iterator[Server]:
    running = start(
        str(CHECKPOINT), "--backend", "cpu", "--precision", "f32", "--context", "64",
        "--served-model-name", "tiny", "--served-model-name", "tiny-2",
    )  # fmt: skip
    yield running
    stop(running)
