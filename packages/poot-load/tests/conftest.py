"""Makes the test helpers importable, and finds real checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from poot_core import Settings

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def models_dir() -> Path:
    settings = Settings.from_environment()
    if settings.models_dir is None:
        if settings.require_models:
            pytest.fail("POOT_REQUIRE_MODELS is set, POOT_MODELS_DIR is not")
        pytest.skip("POOT_MODELS_DIR names no directory of checkpoints")
    return settings.models_dir
