"""What a server costs beside the device: a stub device, the real driver, frames, SSE, a light client.

The stub keeps two cores busy for as long as SmolLM2-135M takes for such a step on two cores, with the
GIL released, as a compiled program does. The driver, its sampling and the frames are the real ones. Two
shapes are measured: the engine in a process of its own, and on a thread of the server.

    python benchmarks/server_proof.py --json results.json
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from poot_executor import EngineInfo, EngineOptions, Sampled, StepInputs
from poot_llm import Driver, SamplingParams
from poot_serve._engine_loop import EngineLoop  # noqa: PLC2701
from poot_serve._engine_process import EngineProcess, EngineState  # noqa: PLC2701
from poot_serve._frames import EngineOptionsFrame, Ready, encode_frame  # noqa: PLC2701

STEP_S, ROW_S, PROMPT_TOKEN_S = 3.0e-3, 0.37e-3, 0.33e-3
VOCAB_SIZE = 49152
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 200
WARM_STEPS = 20


@cache
def native_step() -> Any:
    """Return ``step(until_ns) -> ns``: two threads spin until then; the time is read at the end."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    source = """
    declare i32 @clock_gettime(i32, ptr)
    declare i32 @pthread_create(ptr, ptr, ptr, ptr)
    declare i32 @pthread_join(i64, ptr)
    define i64 @now() {
      %t = alloca [2 x i64]
      call i32 @clock_gettime(i32 1, ptr %t)
      %s = load i64, ptr %t
      %p = getelementptr i64, ptr %t, i64 1
      %n = load i64, ptr %p
      %m = mul i64 %s, 1000000000
      %r = add i64 %m, %n
      ret i64 %r
    }
    define i64 @spin(i64 %until) {
    head:
      br label %loop
    loop:
      %t = call i64 @now()
      %c = icmp slt i64 %t, %until
      br i1 %c, label %loop, label %done
    done:
      ret i64 %t
    }
    define ptr @mate(ptr %argument) {
      %until = ptrtoint ptr %argument to i64
      %t = call i64 @spin(i64 %until)
      ret ptr null
    }
    define i64 @step(i64 %until) {
      %thread = alloca i64
      %argument = inttoptr i64 %until to ptr
      call i32 @pthread_create(ptr %thread, ptr null, ptr @mate, ptr %argument)
      %t = call i64 @spin(i64 %until)
      %id = load i64, ptr %thread
      call i32 @pthread_join(i64 %id, ptr null)
      %end = call i64 @now()
      ret i64 %end
    }
    """
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(source), machine)
    engine.finalize_object()
    address = engine.get_function_address("step")
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
    function.owner = engine  # type: ignore[attr-defined] # lives as long as the function
    return function


class StubEngine:
    """An engine whose steps take real time and whose greedy tokens are made up."""

    def __init__(self, max_sequences: int) -> None:
        self.options = EngineOptions(
            context_tokens=4096, max_sequences=max_sequences, max_step_tokens=512,
            num_blocks=128 * max_sequences,
        )  # fmt: skip
        self.step = native_step()
        self.records: list[list[int]] = []
        self._tokens = np.zeros(0, np.int32)

    @property
    def info(self) -> EngineInfo:
        """Facts of this engine."""
        return EngineInfo(
            backend="stub", device="stub", vocab_size=VOCAB_SIZE, options=self.options,
            weight_bytes=0, state_bytes=0, workspace_bytes=0,
        )  # fmt: skip

    def forward(self, step: StepInputs) -> None:
        """Take as long as such a step takes."""
        rows, tokens = len(step.sequence_lengths), len(step.token_ids)
        seconds = STEP_S + ROW_S * rows + PROMPT_TOKEN_S * (tokens - rows)
        before_cpu = time.thread_time_ns()
        begin = time.monotonic_ns()
        end = self.step(begin + int(1e9 * seconds))
        back = time.monotonic_ns()
        self.records.append([rows, tokens, begin, end, back, before_cpu, time.thread_time_ns()])
        self._tokens = (step.token_ids[step.logit_positions] * 7 + 11) % VOCAB_SIZE

    def greedy(self) -> np.ndarray:
        """Return made up tokens."""
        return self._tokens

    def logits(self) -> np.ndarray:
        """Return nothing of use: all requests of the proof are greedy."""
        raise NotImplementedError

    def sample(self, params: np.ndarray) -> None:
        """Do nothing: all requests of the proof are greedy."""

    def sampled(self) -> Sampled:
        """Return that nothing was sampled."""
        return Sampled(np.zeros(0, np.int32), np.zeros(0, np.int32))

    def set_counts(self, slot: int, entries: np.ndarray) -> None:
        """Do nothing: no request of the proof has penalties."""

    def step_faults(self) -> Mapping[int, str]:
        """Return that nothing went wrong."""
        return {}

    def close(self) -> None:
        """Do nothing."""


def figures(records: list[list[int]], rows: int) -> dict[str, float]:
    """Return what the steps with all rows decoding say."""
    host, cpu, taken, inflation = [], [], [], []
    for before, after in zip(records[WARM_STEPS:], records[WARM_STEPS + 1 :], strict=False):
        if before[:2] == after[:2] == [rows, rows]:
            nominal = 1e9 * (STEP_S + ROW_S * rows)
            host.append((after[2] - before[4]) / 1e3)
            cpu.append((after[5] - before[6]) / 1e3)
            taken.append((before[4] - before[3]) / 1e3)
            inflation.append((after[2] - before[2]) / nominal)
    return {
        "steps": len(host),
        "host_cpu_us_median": float(np.median(cpu)),
        "host_us_median": float(np.median(host)),
        "host_us_p99": float(np.percentile(host, 99)),
        "retake_us_p99": float(np.percentile(taken, 99)),
        "step_inflation": float(np.median(inflation)),
        "step_inflation_p99": float(np.percentile(inflation, 99)),
    }


def serve_frames(connection: socket.socket, rows: int) -> StubEngine:
    """Run the real loop over a stub until the other side goes."""
    engine = StubEngine(rows)
    info = engine.info
    ready = Ready(
        backend="stub",
        device="stub",
        vocab_size=VOCAB_SIZE,
        context_tokens=4096,
        max_sequences=rows,
    )
    connection.sendall(encode_frame(ready))
    EngineLoop(connection, Driver(engine, eos_token_ids=[VOCAB_SIZE - 1])).run()
    assert info is not None
    return engine


def engine_main(descriptor: int, rows: int, out: Path) -> None:
    """Be the engine process."""
    with socket.socket(fileno=descriptor) as connection:
        engine = serve_frames(connection, rows)
    out.write_text(json.dumps(engine.records))


class ThreadEngine(EngineProcess):
    """The other shape: the same loop and frames on a thread of the server."""

    def __init__(self, rows: int) -> None:
        super().__init__(EngineOptionsFrame(model="stub"))
        self.rows = rows
        self.stub: StubEngine | None = None

    async def run(self) -> None:
        """Serve from a thread."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def work() -> None:
            self.stub = serve_frames(theirs, self.rows)

        thread = threading.Thread(target=work)
        thread.start()
        writer = asyncio.create_task(self._write(ours))
        try:
            await self._read(ours)
        finally:
            writer.cancel()
            ours.close()
            thread.join()


def make_app(engine: EngineProcess) -> Any:
    """Return an ASGI application that streams tokens as server-sent events."""
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        seed = int(scope["path"].strip("/"))
        prompt = np.random.default_rng(seed).integers(0, VOCAB_SIZE, PROMPT_TOKENS).tolist()
        ticket = engine.submit(prompt, params)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        reason = None
        while reason is None:
            event = await ticket.next_event()
            reason = event.finish_reason
            chunk = {"choices": [{"index": 0, "text": f"token {event.token_ids}"}]}
            body = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


async def client(port: int, streams: int) -> None:
    """Read ``streams`` streams to their ends."""

    async def one(seed: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /{seed} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        events = 0
        while data := await reader.read(1 << 16):
            events += data.count(b"data:")
        assert events == OUTPUT_TOKENS + 1, events
        writer.close()

    await asyncio.gather(*(one(seed) for seed in range(streams)))


async def measure(shape: str, rows: int, cores: int) -> dict[str, Any]:
    """Return the figures of one shape at so many streams."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.json"
        if shape == "process":
            command = [sys.executable, __file__, "--engine", str(rows), str(out)]
            engine: EngineProcess = EngineProcess(EngineOptionsFrame(model="stub"), command=command)
        else:
            engine = ThreadEngine(rows)
        running = asyncio.create_task(engine.run())
        while engine.state.ready is None:
            await engine.changed.wait()
        config = uvicorn.Config(make_app(engine), port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        cpu = time.process_time()
        start = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--client", str(port), str(rows)
        )
        assert await process.wait() == 0
        seconds = time.perf_counter() - start
        cpu = time.process_time() - cpu
        server.should_exit = True
        await serving
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if isinstance(engine, ThreadEngine):
            assert engine.stub is not None
            records = engine.stub.records
        else:
            records = json.loads(out.read_text())
    assert isinstance(engine.state, EngineState)
    return {
        "shape": shape, "streams": rows, "cores": cores, **figures(records, rows),
        "tokens_per_s": rows * OUTPUT_TOKENS / seconds,
        "server_cpu_us_per_token": 1e6 * cpu / (rows * OUTPUT_TOKENS) if shape == "process" else None,
    }  # fmt: skip


def main() -> None:
    """Measure both shapes at 8, 16 and 64 streams, on all cores and on one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--streams", type=int, nargs="*", default=[8, 16, 64])
    parser.add_argument("--cores", type=int, nargs="*", default=[2, 1])
    parser.add_argument("--one", nargs=3, metavar=("SHAPE", "STREAMS", "CORES"))
    parser.add_argument("--engine", nargs="+")
    parser.add_argument("--client", nargs=2, type=int)
    options = parser.parse_args()
    if options.engine:
        rows, out, descriptor, _ = options.engine
        engine_main(int(descriptor), int(rows), Path(out))
    elif options.client:
        asyncio.run(client(*options.client))
    elif options.one:
        shape, streams, cores = options.one
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
        print(json.dumps(asyncio.run(measure(shape, int(streams), int(cores)))))
    else:
        found = []
        for cores in options.cores:
            for streams in options.streams:
                for shape in ("process", "thread"):
                    command = [sys.executable, __file__, "--one", shape, str(streams), str(cores)]
                    line = subprocess.run(
                        command, capture_output=True, text=True, check=True
                    ).stdout
                    found.append(json.loads(line))
                    print(line, end="", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
