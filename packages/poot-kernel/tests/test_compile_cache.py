"""The kernel cache on disk: what is kept, what is dropped, what breaks nothing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from poot_core import Settings
from poot_kernel.compile import KernelCache, current_epoch, source_fingerprint
from poot_kernel.compile import _cache as cache_module
from poot_kernel.compile._prune import prune

HOUR = 3600.0


def open_cache(root: Path) -> KernelCache:
    return KernelCache(Settings(kernel_cache_dir=root))


def blob(root: Path) -> Path:
    (path,) = (root / current_epoch()).glob("kind-*")
    return path


def test_blobs_come_back_and_survive_the_process(tmp_path: Path) -> None:
    data = os.urandom(5000)
    open_cache(tmp_path).put("kind", "k1", data)
    open_cache(tmp_path).put("kind", "empty", b"")
    again = open_cache(tmp_path)
    assert again.get("kind", "k1") == data
    assert again.get("kind", "empty") == b""
    assert again.get("kind", "k2") is None
    assert again.get("other", "k1") is None
    assert (again.hits, again.misses) == (2, 2)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "header", "extend"])
def test_a_damaged_entry_is_a_miss_and_is_dropped(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_cache(tmp_path).put("kind", "k", os.urandom(300))
    path = blob(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-40]
    elif damage == "flip":
        data[100] ^= 1
    elif damage == "empty":
        data = bytearray()
    elif damage == "header":
        data[0] ^= 1
    else:
        data += b"x"
    path.write_bytes(data)
    cache = open_cache(tmp_path)
    assert cache.get("kind", "k") is None
    assert (cache.hits, cache.misses) == (0, 1)
    assert "corrupt entry" in caplog.text
    assert not path.exists()
    cache.put("kind", "k", b"new")
    assert cache.get("kind", "k") == b"new"


def test_names_cannot_leave_the_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache names"):
        open_cache(tmp_path).get("kind", "../../etc/passwd")


def test_a_root_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "file" / "below"
    (tmp_path / "file").write_text("in the way")
    cache = open_cache(root)
    for key in ("a", "b"):
        cache.put("kind", key, b"data")
        assert cache.get("kind", key) is None
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_read_only_root_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_cache(tmp_path).put("kind", "k", b"data")
    epoch = tmp_path / current_epoch()
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    epoch.chmod(0o500)
    try:
        cache = open_cache(tmp_path)
        assert cache.get("kind", "k") == b"data"
        cache.put("kind", "new", b"data")
        assert caplog.text.count("cannot be written") == 1
    finally:
        epoch.chmod(0o700)


def test_a_full_disk_leaves_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_source: str, _target: str) -> None:
        raise OSError(28, "No space left on device")

    cache = open_cache(tmp_path)
    cache.put("kind", "before", b"data")
    monkeypatch.setattr(cache_module.os, "replace", full)
    cache.put("kind", "k", b"data")
    monkeypatch.undo()
    assert "No space left on device" in caplog.text
    assert cache.get("kind", "k") is None
    assert cache.get("kind", "before") == b"data"
    names = {p.name for p in (tmp_path / current_epoch()).iterdir()}
    assert names == {"EPOCH", "kind-before"}


def test_the_epoch_may_vanish_under_a_process(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put("kind", "k", b"data")
    for path in (tmp_path / current_epoch()).iterdir():
        path.unlink()
    (tmp_path / current_epoch()).rmdir()
    assert cache.get("kind", "k") is None
    cache.put("kind", "k", b"again")
    assert cache.get("kind", "k") == b"again"


def test_hits_refresh_the_epochs_last_use(tmp_path: Path) -> None:
    open_cache(tmp_path).put("kind", "k", b"data")
    sidecar = tmp_path / current_epoch() / "EPOCH"
    os.utime(sidecar, (1000.0, 1000.0))
    cache = open_cache(tmp_path)
    assert cache.get("kind", "absent") is None
    assert sidecar.stat().st_mtime == 1000.0
    cache.get("kind", "k")
    assert time.time() - sidecar.stat().st_mtime < HOUR


def make_epoch(root: Path, name: str, idle_hours: float, now: float) -> Path:
    epoch = root / f"epoch-{name}"
    epoch.mkdir(parents=True)
    (epoch / "object-k").write_bytes(b"data")
    (epoch / "EPOCH").touch()
    os.utime(epoch / "EPOCH", (now - idle_hours * HOUR,) * 2)
    return epoch


def test_pruning_keeps_the_current_the_eight_newest_and_the_recent(tmp_path: Path) -> None:
    now = time.time()
    current = make_epoch(tmp_path, "current", 1000, now)
    # Idle hours; the eight newest are kept at any age, the others only within a day.
    kept = [make_epoch(tmp_path, f"new{i}", 30 + i, now) for i in range(6)]
    recent = [make_epoch(tmp_path, f"recent{i}", 1 + i, now) for i in range(2)]
    old = [make_epoch(tmp_path, f"old{i}", 100 + i, now) for i in range(3)]
    (tmp_path / "somebody's notes").write_text("not ours")
    prune(tmp_path, keep="epoch-current", now=now)
    assert all(epoch.exists() for epoch in [current, *kept, *recent])
    assert not any(epoch.exists() for epoch in old)
    assert (tmp_path / "somebody's notes").exists()
    assert len(list(tmp_path.iterdir())) == 10


def test_pruning_spares_surplus_epochs_used_within_a_day(tmp_path: Path) -> None:
    now = time.time()
    epochs = [make_epoch(tmp_path, f"e{i}", 1 + i, now) for i in range(12)]
    prune(tmp_path, keep="epoch-current", now=now)
    assert all(epoch.exists() for epoch in epochs)


@pytest.mark.parametrize("folder", ["", "epoch-current", "epoch-other"])
def test_pruning_drops_scratch_older_than_an_hour(tmp_path: Path, folder: str) -> None:
    now = time.time()
    make_epoch(tmp_path, "current", 0, now)
    make_epoch(tmp_path, "other", 0, now)
    young, old = tmp_path / folder / ".scratch-1-a", tmp_path / folder / ".scratch-2-b"
    for path, age in ((young, 0.9), (old, 1.1)):
        path.write_bytes(b"part")
        os.utime(path, (now - age * HOUR,) * 2)
    prune(tmp_path, keep="epoch-current", now=now)
    assert young.exists()
    assert not old.exists()


def test_the_source_of_a_failed_compilation_is_kept_for_a_day(tmp_path: Path) -> None:
    young = open_cache(tmp_path).keep_failed("young.ll", "define")
    old = open_cache(tmp_path).keep_failed("old.ll", "define")
    assert young == tmp_path / "failed" / "young.ll"
    assert old == tmp_path / "failed" / "old.ll"
    assert young.read_text() == "define"
    now = time.time()
    for path, age in ((young, 23), (old, 25)):
        os.utime(path, (now - age * HOUR,) * 2)
    prune(tmp_path, keep="epoch-current", now=now)
    assert young.exists()
    assert not old.exists()


def test_a_root_is_pruned_when_a_process_first_opens_it(tmp_path: Path) -> None:
    for i in range(9):
        make_epoch(tmp_path, f"x{i}", 100 + i, time.time())
    cache = open_cache(tmp_path)
    cache.get("kind", "k")
    assert not (tmp_path / "epoch-x8").exists()
    late = make_epoch(tmp_path, "late", 500, time.time())
    open_cache(tmp_path).get("kind", "k")
    assert late.exists()


def run_program(text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_without_a_root_the_blobs_go_with_the_process() -> None:
    program = """
        from poot_core import Settings
        from poot_kernel.compile import KernelCache
        cache = KernelCache(Settings())
        cache.put("kind", "k", b"data")
        assert cache.get("kind", "k") == b"data"
        print(cache.directory)
    """
    process = run_program(program)
    directory = Path(process.communicate(timeout=60)[0].strip())
    assert process.returncode == 0
    assert directory.name == current_epoch()
    assert not directory.parent.exists()


def test_processes_may_write_the_same_keys_at_once(tmp_path: Path) -> None:
    program = """
        import hashlib, sys
        from pathlib import Path
        from poot_core import Settings
        from poot_kernel.compile import KernelCache
        cache = KernelCache(Settings(kernel_cache_dir=Path(sys.argv[1])))
        for turn in range(150):
            for key in ("a", "b"):
                data = hashlib.sha256(key.encode()).digest() * 1000
                got = cache.get("kind", key)
                assert got in (None, data)
                cache.put("kind", key, data)
    """
    processes = [run_program(program, str(tmp_path)) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    names = {p.name for p in (tmp_path / current_epoch()).iterdir()}
    assert names == {"EPOCH", "kind-a", "kind-b"}


def test_warnings_reach_stderr_of_a_plain_program(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    program = """
        import sys
        from pathlib import Path
        from poot_core import Settings
        from poot_kernel.compile import KernelCache
        KernelCache(Settings(kernel_cache_dir=Path(sys.argv[1]))).put("kind", "k", b"data")
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "file")],
        capture_output=True,
        text=True,
    )
    assert process.stdout == ""
    assert process.stderr.count("cannot be written") == 1
    assert logging.getLogger("poot.kernel").name == "poot.kernel"


def test_a_fingerprint_changes_with_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fingerprinted_package"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = source_fingerprint("fingerprinted_package")
    assert before == source_fingerprint("fingerprinted_package")
    (package / "__init__.py").write_text("x = 22\n")
    assert source_fingerprint("fingerprinted_package") != before
    with pytest.raises(ModuleNotFoundError):
        source_fingerprint("no_such_package_here")
