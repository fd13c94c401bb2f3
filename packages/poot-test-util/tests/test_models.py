from pathlib import Path

import pytest

from poot_core import Settings
from poot_test_util import MODELS, require_model


def test_a_model_in_the_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / MODELS["gemma3"]).write_bytes(b"x")
    settings = Settings(models_dir=tmp_path)
    assert require_model("gemma3", settings) == tmp_path / MODELS["gemma3"]
    assert require_model(MODELS["gemma3"], settings).exists()


def test_a_missing_model_skips_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="SmolLM2"):
        require_model("smollm2", Settings(models_dir=tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"POOT_MODELS_DIR is not set.*SmolLM2"):
        require_model("smollm2", Settings())


def test_a_missing_model_fails_where_models_are_required(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="SmolLM2"):
        require_model("smollm2", Settings(models_dir=tmp_path, require_models=True))
    with pytest.raises(pytest.fail.Exception, match="POOT_MODELS_DIR"):
        require_model("smollm2", Settings(require_models=True))
