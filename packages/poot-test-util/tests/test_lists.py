from pathlib import Path

import pytest

from poot_core import Settings
from poot_test_util import (
    device_parameters,
    find_root,
    load_lanes,
    packaged_model,
    read_cases,
    require_device,
)


def test_rows_have_tags_and_reasons(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("# a comment\n\n@default a.py::t[x y]\n@large b.py::t\nc.py::t # slow here\n")
    rows = read_cases(path)
    assert [(r.node_id, set(r.tags), r.reason) for r in rows] == [
        ("a.py::t[x y]", {"default"}, ""),
        ("c.py::t", set(), "slow here"),
    ]
    assert [row.node_id for row in read_cases(path, "large")] == ["b.py::t"]
    assert read_cases(tmp_path / "absent.txt") == []


def test_parameters_carry_the_mark_of_their_device() -> None:
    cpu, *others = device_parameters("cpu")
    assert (cpu.id, cpu.marks) == ("cpu", ())
    assert [(p.id, p.marks[0].args) for p in others] == [
        (name, (name,)) for name in ("ptx", "rocm", "vulkan", "wgpu")
    ]


def test_a_device_that_nothing_installs_is_named() -> None:
    with pytest.raises(pytest.skip.Exception, match="no package installs a device 'abacus'"):
        require_device("abacus", Settings())
    with pytest.raises(pytest.fail.Exception, match="POOT_REQUIRE_DEVICES=1 requires it"):
        require_device("abacus", Settings(require_devices=True))


def test_the_packaged_model_is_a_file_or_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poot_test_util._models.find_spec", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="SmolLM2"):
        packaged_model(Settings(require_models=True))


def test_a_lane_with_an_unknown_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "lanes.toml").write_text(
        "pending = ['gone']\n[lanes.a]\nenvironment = ['b']\n[environment]\n[packages]\n"
    )
    assert find_root(tmp_path / "packages") == tmp_path
    with pytest.raises(ValueError, match=r"\['b', 'gone'\]"):
        load_lanes(tmp_path)
