"""The compile service: requests in, compiled objects out, from the cache or from workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from poot_core import CompileError, Settings
from poot_kernel.compile._cache import KernelCache
from poot_kernel.compile._llvm_target import llvm_target
from poot_kernel.compile._request import CompiledObject, CompileRequest

if TYPE_CHECKING:
    from poot_kernel.compile._pool import Worker

__all__ = ["CompileService"]

_services: weakref.WeakSet[CompileService] = weakref.WeakSet()


class CompileService:
    """Compiles requests in worker processes, at most one a core, through the kernel cache.

    Nothing is started before the first cache miss. Safe to use from several threads. A context
    manager; workers end with ``close``, with this process, or when the service is dropped.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cache: KernelCache | None = None,
        num_workers: int | None = None,
    ) -> None:
        """Prepare a service.

        Args:
            settings: Where the cache lies.
            cache: Cache to share with other users of the same root.
            num_workers: Most worker processes; by default the cores of the affinity mask.
        """
        self.cache = cache if cache is not None else KernelCache(settings)
        self._num_workers = num_workers or _num_cores()
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers: set[Worker] = set()
        self._pending: dict[str, Future[bytes]] = {}
        self._closed = False
        _services.add(self)

    def submit(self, request: CompileRequest) -> Future[CompiledObject]:
        """Return a future of the compiled object; a cache hit is done at once.

        The IR of a miss is taken now, in the calling thread. The future raises CompileError.

        Raises:
            UnsupportedError: If the kind does not fit the target.
        """
        target = llvm_target(request.kind, request.target)
        key = request.key()
        result: Future[CompiledObject] = Future()
        cached = self.cache.get("object", key)
        if cached is not None:
            result.set_result(_compiled(request, key, cached))
            return result
        with self._lock:
            running = self._pending.get(key)
            if running is None:
                text = request.text()
                job: dict[str, Any] = {
                    **asdict(target),
                    "entries": request.entries,
                    "opt_level": request.opt_level,
                }
                running = self._pool().submit(self._compile, request, key, text, job)
                self._pending[key] = running
        running.add_done_callback(lambda done: _copy(done, result, request, key))
        running.add_done_callback(lambda _done: self._pending.pop(key, None))
        return result

    def compile(self, requests: Sequence[CompileRequest]) -> list[CompiledObject]:
        """Return the compiled objects of a batch, in its order; misses compile in parallel.

        Raises:
            CompileError: If a module is refused or a worker dies; it names the kept IR's path.
            UnsupportedError: If a kind does not fit its target.
        """
        futures = [self.submit(request) for request in requests]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the workers and take no more work; closing twice is allowed."""
        self._closed = True
        self.release_workers()

    def release_workers(self) -> None:
        """End the workers once they are done, for their memory; a later miss starts new ones."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=self._closed)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._idle = queue.SimpleQueue()

    def __enter__(self) -> CompileService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        for worker in getattr(self, "_workers", ()):
            worker.close()

    def worker_pids(self) -> tuple[int, ...]:
        """Return the process ids of the workers that run now."""
        return tuple(sorted(worker.pid for worker in self._workers))

    def _pool(self) -> ThreadPoolExecutor:
        if self._closed:
            raise CompileError("the compile service is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_workers, "poot-compile")
        return self._executor

    def _compile(self, request: CompileRequest, key: str, text: str, job: dict[str, Any]) -> bytes:
        from poot_kernel.compile._pool import WorkerDied  # not needed on a warm cache

        worker = self._take_worker()
        try:
            answer, data = worker.call(job, text.encode())
        except WorkerDied as death:
            self._workers.discard(worker)
            worker.close()
            raise self._failure(request, key, text, str(death)) from None
        self._idle.put(worker)
        if not answer["ok"]:
            raise self._failure(request, key, text, answer["error"])
        self.cache.put("object", key, data)
        return data

    def _take_worker(self) -> Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            from poot_kernel.compile._pool import Worker

            worker = Worker()
            self._workers.add(worker)
            return worker

    def _failure(self, request: CompileRequest, key: str, text: str, what: str) -> CompileError:
        path = self.cache.keep_failed(f"{key[:16]}.ll", text)
        where = f"its IR is kept at {path}" if path is not None else "its IR could not be kept"
        names = ", ".join(request.entries)
        return CompileError(
            f"compiling {names!r} for {request.target} failed: {what}; {where}",
            target=str(request.target),
            path=None if path is None else str(path),
        )

    def after_fork(self) -> None:
        """Forget workers and threads that belong to the parent process."""
        for worker in self._workers:
            worker.abandon()
        self._workers = set()
        self._idle = queue.SimpleQueue()
        self._executor = None
        self._pending = {}
        self._lock = threading.Lock()


def _compiled(request: CompileRequest, key: str, data: bytes) -> CompiledObject:
    return CompiledObject(
        kind=request.kind, target=request.target, entries=request.entries, key=key, data=data
    )


def _copy(
    done: Future[bytes], result: Future[CompiledObject], request: CompileRequest, key: str
) -> None:
    if done.cancelled():
        result.cancel()
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(_compiled(request, key, done.result()))


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _close_all() -> None:
    for service in list(_services):
        service.close()


def _after_fork_in_child() -> None:
    for service in list(_services):
        with contextlib.suppress(Exception):
            service.after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
