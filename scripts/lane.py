"""Run one lane of the tests as ``.config/lanes.toml`` defines it.

Sets the lane's environment, opens its device before any test, runs its tests with JUnit results in
build/lanes/, and ends with the required-case gate where the lane has a list of cases. A lane that
selects no test fails. Further arguments go to pytest; the required-case gate is left out then,
because a part of a lane cannot satisfy it.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import subprocess
import sys
from pathlib import Path

from poot_test_util import Lane, Lanes, load_lanes, packaged_model

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "lanes"
GPU_NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*")
PATHS = ("packages", "benchmarks/tests")
NO_TEST = 5  # pytest's exit code
ERROR_OF_VALIDATION = re.compile(r"Validation Error|\bVUID-")


def has_gpu() -> bool:
    """Whether the machine shows a GPU of any kind."""
    return any(glob.glob(pattern) for pattern in GPU_NODES)


def expand(value: str) -> str:
    """Fill in a value of the ``[environment]`` table: other variables, ``*``, the packaged model."""

    def variable(match: re.Match[str]) -> str:
        return os.environ.get(match[1]) or os.path.expanduser(match[2])

    if value == "{packaged}":
        return str(packaged_model().parent)
    value = re.sub(r"\$\{(\w+):-([^}]*)\}", variable, value)
    if "*" in value:
        found = sorted(glob.glob(value))
        return found[0] if found else value
    return value


def environment_of(lane: Lane, lanes: Lanes, *, software: bool) -> dict[str, str]:
    """Return the environment of a lane's processes."""
    words = [*lane.environment, *(["lavapipe"] if software else [])]
    environment = dict(os.environ)
    for word in words:
        for name, value in lanes.environment[word].items():
            if value:
                environment[name] = expand(value)
            else:
                environment.pop(name, None)
    if "validation" in lane.environment:
        environment |= validation_settings(lane)
    return environment


def validation_settings(lane: Lane) -> dict[str, str]:
    """Tell the validation layer to log into a file of the lane."""
    folder = RESULTS / lane.name
    folder.mkdir(parents=True, exist_ok=True)
    validation_log(lane).unlink(missing_ok=True)
    (folder / "vk_layer_settings.txt").write_text(
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n"
        "khronos_validation.report_flags = error\n"
        f"khronos_validation.log_filename = {validation_log(lane)}\n"
    )
    return {"VK_LAYER_SETTINGS_PATH": str(folder)}


def validation_log(lane: Lane) -> Path:
    """Return where the validation layer logs."""
    return RESULTS / lane.name / "validation.log"


def probe(lane: Lane, environment: dict[str, str]) -> int:
    """Open the lane's device in a process of its own; say what is missing."""
    code = f"import sys, poot_test_util as u; sys.exit(u.why_absent({lane.device!r}))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    if done.returncode:
        print(f"{lane.name}: the device {lane.device} is missing, so no test runs", file=sys.stderr)
    return done.returncode


def run_tests(lane: Lane, environment: dict[str, str], more: list[str], *, software: bool) -> int:
    """Run pytest over the lane and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-c", ".config/pytest.ini", "--rootdir=."]
    command += ["--lane", lane.name, "-q", "-rs", "--durations=8", "--durations-min=1"]
    command += [f"--junitxml={RESULTS / lane.name}.xml", "-o", f"junit_suite_name={lane.name}"]
    command += ["-n", str(lane.workers), "--dist", "loadgroup"] if lane.workers > 1 else []
    command += ["--software"] if software else []
    paths = [] if any(not word.startswith("-") for word in more) else list(PATHS)
    code = subprocess.run(
        [*command, *more, *paths], cwd=ROOT, env=environment, check=False
    ).returncode
    if code == NO_TEST:
        print(f"{lane.name}: the lane selects no test, which is a failure", file=sys.stderr)
    return code


def required_cases(*arguments: str) -> int:
    """Run the required-case gate."""
    program = str(ROOT / "scripts" / "check-required-cases.py")
    return subprocess.run([sys.executable, program, *arguments], check=False).returncode


def check_validation(lane: Lane) -> int:
    """Fail where the validation layer logged an error."""
    log = validation_log(lane)
    text = log.read_text(errors="replace") if log.is_file() else ""
    errors = [line for line in text.splitlines() if ERROR_OF_VALIDATION.search(line)]
    if errors:
        print(f"{lane.name}: the validation layer reports {len(errors)} errors in {log}:")
        print("\n".join(dict.fromkeys(line[:400] for line in errors[:12])))
    return min(len(errors), 1)


def run_lane(lanes: Lanes, lane: Lane, more: list[str]) -> int:
    """Run a lane from its stamp to its gates; return the first exit code that is not 0."""
    software = lane.software and not has_gpu()
    environment = environment_of(lane, lanes, software=software)
    if lane.device and (code := probe(lane, environment)):
        return code
    results = str(RESULTS / f"{lane.name}.xml")
    required_cases("begin", lane.name, results, *(["--software"] if software else []))
    code = run_tests(lane, environment, more, software=software)
    code = code or (check_validation(lane) if "validation" in lane.environment else 0)
    if lane.cases and more:
        print(f"{lane.name}: a part of the lane; its required cases were not checked")
    elif lane.cases and code != NO_TEST:
        code = required_cases("check", lane.name, results) or code
    return code


def self_test() -> list[str]:
    """Return which lanes pass that must not."""
    lanes = load_lanes(ROOT)
    missed: list[str] = []
    if not probe(Lane(name="self-test", device="no-such-device"), dict(os.environ)):
        missed.append("a lane whose device is missing")
    hidden = environment_of(lanes.lanes["model-free"], lanes, software=False)
    if not probe(lanes.lanes["device-vulkan"], hidden):
        missed.append("a lane whose device is hidden")
    if run_tests(lanes.lanes["web"], hidden, ["packages/poot-core"], software=False) != NO_TEST:
        missed.append("a lane that selects no test")
    validated = Lane(name="self-test")
    validation_settings(validated)
    validation_log(validated).write_text(
        "[ VUID-vkCmdDispatch-None-02691 ] Validation Error: ...\n"
    )
    if not check_validation(validated):
        missed.append("an error of the validation layer")
    return missed


def main() -> int:
    """Run the lane named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lane", help="its name, or `self-test`")
    parser.add_argument("--skip-pending", action="store_true", help="pass where it is pending")
    arguments, more = parser.parse_known_args()
    if arguments.lane == "self-test":
        missed = self_test()
        print("\n".join(missed) or "lanes fail without a test, without a device and when invalid")
        return min(len(missed), 1)
    lanes = load_lanes(ROOT)
    if arguments.lane not in lanes.lanes:
        parser.error(f"no lane {arguments.lane!r}; there are {', '.join(lanes.lanes)}")
    pending = arguments.lane in lanes.pending
    if pending and arguments.skip_pending:
        print(f"{arguments.lane}: pending in .config/lanes.toml, no test is in it yet")
        return 0
    code = run_lane(lanes, lanes.lanes[arguments.lane], more)
    if pending and code:
        print(f"{arguments.lane} is pending in .config/lanes.toml", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
