"""The weight store: views without copies, release, close."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from poot_load_fakes import llama

from poot_core import CheckpointError
from poot_load import open_checkpoint

Q = "model.layers.0.self_attn.q_proj.weight"


def test_views_are_of_the_map_and_read_only(tmp_path: Path) -> None:
    file = llama()
    expected = np.frombuffer(file.tensors["blk.0.attn_q.weight"][2], np.float32).reshape(32, 32)
    with open_checkpoint(file.write(tmp_path / "a.gguf")) as checkpoint:
        weights = checkpoint.weights
        raw, array = weights.raw(Q), weights.array(Q)
        assert np.shares_memory(raw, array)
        assert not raw.flags.writeable
        np.testing.assert_array_equal(array, expected)
        weights.release(Q)  # the pages come back when they are read
        np.testing.assert_array_equal(array, expected)
        for name in weights.names():
            weights.release(name)
        assert Q in weights
        assert len(weights) == len(weights.names()) == 20
    np.testing.assert_array_equal(array, expected)  # a view outlives the store
    with pytest.raises(CheckpointError, match="no tensor"):
        weights.raw(Q)
    weights.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's list of maps")
def test_closing_unmaps(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "a.gguf")
    for _ in range(20):
        with open_checkpoint(path) as checkpoint:
            checkpoint.weights.array(Q)
        del checkpoint
    assert str(path) not in Path("/proc/self/maps").read_text()
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert path not in links


def test_unknown_names_suggest(tmp_path: Path) -> None:
    weights = open_checkpoint(llama().write(tmp_path / "a.gguf")).weights
    with pytest.raises(CheckpointError, match=r"similar are .*self_attn\.q_proj\.weight") as caught:
        weights.info("model.layers.0.self_attn.q_proj.weights")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
