"""The kernel cache on disk: checksummed blobs under one root, shared by processes and versions.

Layout: ``root/epoch-HASH/EPOCH`` (its mtime is the epoch's last use) and
``root/epoch-HASH/KIND-KEY`` (blobs). An epoch holds what one version of the code generators made.
A blob is written to a scratch file and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import re
import time
from pathlib import Path

from poot_core import Settings
from poot_kernel.compile._identity import installed_versions
from poot_kernel.compile._prune import EPOCH_FILE, EPOCH_PREFIX, SCRATCH_PREFIX, prune

__all__ = ["KernelCache", "current_epoch"]

_logger = logging.getLogger("poot.kernel")
_MAGIC = b"POOTBLB1"
_FORMAT_VERSION = "1"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_REFRESH_SECONDS = 60.0  # how often hits of one process touch EPOCH: far below 24 idle hours
_opened: set[Path] = set()


def current_epoch() -> str:
    """Return the name of the epoch that this version of poot-kernel and llvmlite writes."""
    versions = (_FORMAT_VERSION, *installed_versions("poot-kernel", "llvmlite"))
    return EPOCH_PREFIX + hashlib.sha256("\0".join(versions).encode()).hexdigest()[:16]


class KernelCache:
    """Blobs by kind and key. Never raises for the disk's sake: without one it merely forgets.

    >>> cache = KernelCache(Settings())
    >>> cache.put("doc", "a1", b"bytes")
    >>> cache.get("doc", "a1")
    b'bytes'
    """

    def __init__(self, settings: Settings) -> None:
        """Open the root that ``settings`` names; None means a directory that this process removes.

        The first opening of a root in a process prunes it.
        """
        self._shared_root = settings.kernel_cache_dir
        self._epoch = ""
        self._prefix = ""
        self._refreshed = -_REFRESH_SECONDS
        self._warned = False
        self._pid = os.getpid()
        self.hits = 0
        self.misses = 0

    @property
    def directory(self) -> Path:
        """Where the blobs of this epoch lie."""
        self._open()
        return Path(self._prefix)

    def keep_failed(self, name: str, text: str) -> Path | None:
        """Keep the source of a failed compilation and return where, or None if nowhere.

        It outlives the process: under a shared root for a day, else among temporary files.
        """
        import tempfile

        folders = [Path(tempfile.gettempdir()) / "poot-failed"]
        if self._shared_root is not None:
            folders.insert(0, self._shared_root / "failed")
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
                return folder / name
        return None

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the blob, or None if there is none that is whole."""
        self._open()
        path = self._path(kind, key)
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError:
            self.misses += 1
            return None
        payload = _unwrap(data)
        if payload is None:
            _logger.warning("corrupt entry %s of the kernel cache is dropped", path)
            with contextlib.suppress(OSError):
                os.unlink(path)
            self.misses += 1
            return None
        self.hits += 1
        self._touch()
        return payload

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Store a blob; a failure is told once and otherwise ignored."""
        self._open()
        path = self._path(kind, key)
        try:
            self._write(path, data)
        except OSError as error:
            self._warn(error)

    def _write(self, path: str, data: bytes) -> None:
        scratch = f"{self._prefix}{SCRATCH_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        for attempt in (0, 1):
            try:
                with open(scratch, "xb", buffering=0) as file:
                    view = memoryview(_wrap(data))
                    while view:
                        view = view[file.write(view) :]
                os.replace(scratch, path)
                return
            except FileNotFoundError:
                if attempt:
                    raise
                self._create_epoch()  # another process removed the epoch
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(scratch)
                raise

    def _path(self, kind: str, key: str) -> str:
        if not _NAME.fullmatch(kind) or not _NAME.fullmatch(key):
            raise ValueError(
                f"cache names are letters, digits, '_', '.', '-'; got {kind!r} {key!r}"
            )
        return f"{self._prefix}{kind}-{key}"

    def _open(self) -> None:
        if self._prefix and (self._shared_root is not None or self._pid == os.getpid()):
            return
        self._epoch = self._epoch or current_epoch()
        if self._shared_root is not None:
            root = self._shared_root
        else:
            import tempfile

            self._pid = os.getpid()
            root = Path(tempfile.mkdtemp(prefix="poot-kernels-"))
            atexit.register(_remove_own, root, self._pid)
        self._prefix = os.path.join(root, self._epoch, "")
        try:
            self._create_epoch()
        except OSError as error:
            self._warn(error)  # a read-only root may still hold blobs to read
        if self._shared_root is not None and root not in _opened:
            _opened.add(root)
            prune(root, keep=self._epoch, now=time.time())

    def _create_epoch(self) -> None:
        os.makedirs(self._prefix, exist_ok=True)
        with open(self._prefix + EPOCH_FILE, "ab"):
            pass

    def _touch(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            with contextlib.suppress(OSError):
                os.utime(self._prefix + EPOCH_FILE)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning(
                "kernel cache %s cannot be written (%s); kernels are compiled anew in each process",
                self._prefix,
                error.strerror or error,
            )


def _wrap(data: bytes) -> bytes:
    return _MAGIC + len(data).to_bytes(8, "little") + hashlib.sha256(data).digest() + data


def _unwrap(blob: bytes) -> bytes | None:
    payload = blob[48:]
    if blob[:8] != _MAGIC or int.from_bytes(blob[8:16], "little") != len(payload):
        return None
    return payload if hashlib.sha256(payload).digest() == blob[16:48] else None


def _remove_own(root: Path, pid: int) -> None:
    if os.getpid() == pid:
        import shutil

        shutil.rmtree(root, ignore_errors=True)
