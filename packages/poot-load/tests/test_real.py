"""Real checkpoints against transformers: configuration, prompt ids, text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poot_load import open_checkpoint
from poot_quant import FORMATS
from poot_test_util import require_model

REAL: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "real.json").read_text())
# What a llama-like GGUF says besides Hugging Face's configuration, or more plainly.
MORE = {"rope_interleaved", "norm_offset_folded", "head_dim", "attention_bias", "mlp_bias"}


@pytest.mark.checkpoint
@pytest.mark.parametrize("name", REAL)
def test_real_checkpoints(name: str) -> None:
    golden = REAL[name]
    with open_checkpoint(require_model(name)) as checkpoint:
        config = checkpoint.config
        for key in config.keys() - (MORE - golden["config"].keys()):
            assert config[key] == golden["config"][key], key
        assert len(checkpoint.weights) > 200
        dtypes = {checkpoint.weights.info(n).dtype for n in checkpoint.weights.names()}
        assert dtypes & set(FORMATS.values())
        data, whole = checkpoint.tokenizer_data, checkpoint.tokenizer_data
        assert data is not None
        assert whole is not None
        for case in golden["cases"].values():
            assert data.encode(case["prompt"]) == case["prompt_ids"]
            assert whole.tokenizer.encode(case["prompt"]).ids == case["prompt_ids"]
            text = data.decode(case["output_ids"], skip_special_tokens=False, is_continuation=True)
            assert text == case["text"]
