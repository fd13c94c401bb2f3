"""The thread team's life: start, sleep, end, fork, interrupt; and its size."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from poot_core import DeviceError, Settings
from poot_cpu_device import _topology as topology
from poot_cpu_device import open_device
from poot_executor import BufferArgument, GridDim, Launch

HERE = Path(__file__).parent


def team_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("poot-")]


def counting_step(device, kernels, tiles: int = 100):
    counts = device.allocate(8 * tiles, "counts")
    launch = Launch(
        kernel=kernels["count"], arguments=(BufferArgument(counts),), grid=(GridDim(tiles),)
    )
    return counts, device.prepare([launch])


def test_threads_start_with_the_first_step_and_end_with_close(open_with) -> None:
    device, kernels = open_with(3)
    _, step = counting_step(device, kernels)
    before = len(team_threads())
    device.run(step, {})
    assert len(team_threads()) == before + 2
    device.close()
    device.close()
    assert len(team_threads()) == before
    with pytest.raises(DeviceError, match="closed"):
        device.run(step, {})


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_fifty_devices_leave_no_threads(open_with) -> None:
    open_with(2)[0].close()
    before = len(os.listdir("/proc/self/task"))
    for _ in range(50):
        device, kernels = open_with(2)
        _, step = counting_step(device, kernels)
        device.run(step, {})
        device.close()
    for _ in range(100):  # a joined thread may still be leaving the kernel
        if len(os.listdir("/proc/self/task")) <= before:
            break
        time.sleep(0.02)
    assert len(os.listdir("/proc/self/task")) <= before


def test_a_dropped_device_ends_its_threads(settings) -> None:
    import gc

    before = team_threads()
    device = open_device(settings, 2)
    device.run(device.prepare([]), {})
    assert len(team_threads()) == len(before) + 1
    del device
    gc.collect()
    assert team_threads() == before


def test_an_idle_team_uses_no_processor(open_with) -> None:
    device, kernels = open_with(4)
    _, step = counting_step(device, kernels)
    device.run(step, {})
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    device.run(step, {})


def test_a_team_wakes_after_every_pause(open_with) -> None:
    device, kernels = open_with(3)
    counts, step = counting_step(device, kernels)
    for pause in (0, 2e-5, 5e-5, 1e-4, 1e-3) * 40:
        time.sleep(pause)
        device.run(step, {})
    assert (device.view(counts).view("int64") == 200).all()


def test_steps_from_several_python_threads_exclude_each_other(open_with) -> None:
    device, kernels = open_with(2)
    counts, step = counting_step(device, kernels)

    def work() -> None:
        for _ in range(100):
            device.run(step, {})

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (device.view(counts).view("int64") == 300).all()


def run_program(text: str, cache_dir: Path) -> subprocess.CompletedProcess[str]:
    prelude = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from conftest import load_kernels
from poot_core import Settings
from poot_cpu_device import open_device
from poot_executor import BufferArgument, GridDim, Launch
device = open_device(Settings(kernel_cache_dir=Path({str(cache_dir)!r})), 3)
kernels = load_kernels(device)
counts = device.allocate(8 * 5000, "counts")
step = device.prepare([Launch(
    kernel=kernels["count"], arguments=(BufferArgument(counts),), grid=(GridDim(5000),))])
device.run(step, {{}})
"""
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_a_team_of_its_own(cache_dir: Path) -> None:
    program = """
        import warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            alone = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1
            for _ in range(20):
                device.run(step, {})
            ok = alone == 1 and (device.view(counts).view("int64") == 21).all()
            device.close()
            os._exit(0 if ok else 3)
        for _ in range(5):
            device.run(step, {})
        status = os.waitpid(child, 0)[1]
        print(status, (device.view(counts).view("int64") == 6).all())
    """
    done = run_program(program, cache_dir)
    assert done.stdout.split() == ["0", "True"], done.stderr


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "device.close()", "raise SystemExit"])
def test_the_process_ends_whether_or_not_the_device_was_closed(cache_dir: Path, end: str) -> None:
    done = run_program(end, cache_dir)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupt_reaches_python_between_steps(cache_dir: Path) -> None:
    program = """
        # A background job starts with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                device.run(step, {})
        except KeyboardInterrupt:
            device.run(step, {})
            print("interrupted")
    """
    done = run_program(program, cache_dir)
    assert done.stdout == "interrupted\n", done.stderr


def test_the_size_follows_argument_then_settings_then_machine(settings) -> None:
    from dataclasses import replace

    with open_device(settings) as device:
        assert device.num_threads == topology.team_size()
    with open_device(replace(settings, threads=3)) as device:
        assert device.num_threads == 3
    with open_device(replace(settings, threads=3), 1) as device:
        assert device.num_threads == 1
    with pytest.raises(DeviceError, match="got 0"):
        open_device(settings, 0)


def test_the_size_is_at_most_the_affinity_mask() -> None:
    assert 1 <= topology.team_size() <= (os.cpu_count() or 1)


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b", {"a/b/cpu.max": "100000 100000", "a/cpu.max": "300000 100000"}, 1.0),
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("0::/gone", {}, None),
        (
            "3:cpu,cpuacct:/x\n1:memory:/y",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "50000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        (
            "3:cpu:/x",
            {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000",
             "cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"},
            2.5,
        ),
    ],
)  # fmt: skip
def test_quotas_of_both_cgroup_versions_are_read(
    tmp_path: Path, membership: str, files: dict[str, str], expected: float | None
) -> None:
    write_tree(tmp_path, files)
    assert topology._cgroup_cpus(tmp_path, membership) == expected


def test_a_quota_shrinks_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "_physical_cores", lambda: 8)
    for quota, size in ((None, 8), (0.5, 1), (1.0, 1), (2.9, 2), (16.0, 8)):
        monkeypatch.setattr(topology, "_cgroup_cpus", lambda quota=quota: quota)
        assert topology.team_size() == size


def test_the_entry_point_opens_a_device(settings: Settings) -> None:
    from importlib.metadata import entry_points

    (point,) = entry_points(group="poot.devices", name="cpu")
    with point.load()(settings, 1) as device:
        assert device.target.api == "cpu"
