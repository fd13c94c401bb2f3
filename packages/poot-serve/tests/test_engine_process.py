"""The engine process alone: frames, refusals, its death and its restart. No HTTP."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from poot_core import DeviceError, RequestError
from poot_llm import Constraint, ContextLengthError, OverloadedError, SamplingParams
from poot_serve._engine_process import EngineProcess, Ticket
from poot_serve._frames import EngineOptionsFrame, RowEvent

CHECKPOINT = Path(__file__).parent / "data" / "llama"
OPTIONS = EngineOptionsFrame(
    model=str(CHECKPOINT), backend="oracle", precision="f32", context=128, max_sequences=8
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)


@asynccontextmanager
async def running(
    options: EngineOptionsFrame = OPTIONS, **more: float
) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(options, **more)
    task = asyncio.create_task(engine.run())
    await ready(engine)
    yield engine
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def ready(engine: EngineProcess) -> None:
    while engine.state.ready is None:
        assert engine.state.failure is None
        await engine.changed.wait()


async def collect(ticket: Ticket) -> list[RowEvent]:
    events: list[RowEvent] = []
    while not events or events[-1].finish_reason is None:
        events.append(await ticket.next_event())
    return events


def tokens(events: list[RowEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # Servers of other tests may run beside it.
    found = [child for child in children if "_engine" in Path(f"/proc/{child}/cmdline").read_text()]
    assert len(found) == 1
    return int(found[0])


def test_answers_come_alone_and_together_with_their_figures() -> None:
    async def check() -> None:
        async with running() as engine:
            prompts = [[7, 8, 9], [1] * 40, [5, 4], [1] * 40]
            alone = [tokens(await collect(engine.submit(p, GREEDY))) for p in prompts]
            tickets = [engine.submit(p, GREEDY) for p in prompts]
            together = await asyncio.gather(*map(collect, tickets))
            assert [tokens(events) for events in together] == alone
            assert all(len(answer) == 12 for answer in alone)
            timings = together[1][-1].timings
            assert timings is not None
            assert (timings.prompt_tokens, timings.output_tokens) == (40, 12)
            # One full block of 32 tokens stood in the cache since the first time.
            assert together[1][0].cached_tokens == timings.cached_tokens == 32
            metrics = engine.state.metrics
            assert metrics.output_tokens == 8 * 12
            assert metrics.prompt_tokens == 2 * (3 + 40 + 2 + 40)
            assert metrics.prefix_hit_tokens == 3 * 32
            assert (metrics.running, metrics.waiting, metrics.blocks_used) == (0, 0, 0)
            assert metrics.blocks_cached > 0
            assert metrics.steps > 12

    asyncio.run(check())


def test_refusals() -> None:
    async def check() -> None:
        async with running(max_requests=3, max_waiting_tokens=50) as engine:
            with pytest.raises(RequestError, match="vocabulary"):
                await engine.submit([99999], GREEDY).next_event()
            with pytest.raises(ContextLengthError, match="200 tokens"):
                engine.submit([1] * 200, GREEDY)
            with pytest.raises(RequestError, match="too large"):
                engine.submit([2**40], GREEDY)
            # This checkpoint has no tokenizer.
            constrained = SamplingParams(constraint=Constraint.json_object())
            with pytest.raises(RequestError, match="no tokenizer") as caught:
                await engine.submit([1], constrained).next_event()
            assert caught.value.field == "constraint"
            first = engine.submit([1] * 45, LONG)
            with pytest.raises(OverloadedError, match="prompt tokens wait") as caught:
                engine.check_room(1, 6)
            assert (caught.value.status, caught.value.retry_after_s > 0) == (429, True)
            with pytest.raises(OverloadedError, match="at most 3"):
                engine.check_room(3, 1)
            await first.next_event()
            engine.check_room(1, 50)  # the prompt is computed
            first.close()
            assert engine.state.cancelled == 1
            engine.check_room(3, 50)
            # The blocks come back with the next step that runs.
            await collect(engine.submit([3], GREEDY))
            assert engine.state.metrics.blocks_used == 0

    asyncio.run(check())


def test_a_deadline_ends_a_request() -> None:
    async def check() -> None:
        async with running() as engine:
            ticket = engine.submit([1, 2], LONG, deadline_s=0.0)
            with pytest.raises(RequestError, match="time") as caught:
                await collect(ticket)
            assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
            assert engine.state.metrics.deadlines == 1
            assert len(await collect(engine.submit([1, 2], GREEDY, deadline_s=60.0))) == 12

    asyncio.run(check())


def test_a_dead_engine_fails_its_requests_once_and_comes_back() -> None:
    async def check() -> None:
        async with running() as engine:
            good = tokens(await collect(engine.submit([5, 6], GREEDY)))
            for crash in (1, 2):
                victim = engine.submit([1, 2, 3], LONG)
                await victim.next_event()
                os.kill(child_of(os.getpid()), signal.SIGKILL)
                with pytest.raises(DeviceError, match="under way"):
                    await collect(victim)
                assert (engine.state.restarts, engine.state.lost) == (crash, crash)
                with pytest.raises(OverloadedError) as caught:
                    engine.submit([1], GREEDY)
                assert caught.value.status == 503
                await ready(engine)
                assert tokens(await collect(engine.submit([5, 6], GREEDY))) == good
            with pytest.raises(RequestError, match="crashed 2 times") as caught:
                engine.submit([1, 2, 3], LONG)
            assert caught.value.status == 422

    asyncio.run(check())


def test_a_step_past_its_deadline_ends_the_engine() -> None:
    async def check() -> None:
        async with running(step_deadline_s=0.5) as engine:
            ticket = engine.submit([1, 2, 3], LONG)
            await ticket.next_event()
            pid = child_of(os.getpid())
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(DeviceError, match="under way"):
                await collect(ticket)
            assert not Path(f"/proc/{pid}").exists()
            await ready(engine)
            assert len(await collect(engine.submit([5], GREEDY))) == 12

    asyncio.run(check())


def test_a_model_that_cannot_be_opened_is_a_failure_and_not_tried_again() -> None:
    async def check() -> None:
        engine = EngineProcess(EngineOptionsFrame(model="/no/such/model"))
        await engine.run()
        assert "no model at" in (engine.state.failure or "")
        assert engine.state.restarts == 0

    asyncio.run(check())


def test_the_engine_ends_when_the_server_is_killed() -> None:
    code = (
        "import asyncio, sys\n"
        "from poot_serve._engine_process import EngineProcess\n"
        "from poot_serve._frames import EngineOptionsFrame\n"
        "async def main():\n"
        f"    engine = EngineProcess(EngineOptionsFrame(model={str(CHECKPOINT)!r}, backend='oracle'))\n"
        "    task = asyncio.create_task(engine.run())\n"
        "    while engine.state.ready is None: await engine.changed.wait()\n"
        "    print('ready', flush=True)\n"
        "    await task\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        engine = child_of(server.pid)
        os.kill(engine, signal.SIGSTOP)  # as one that hangs in a step
        server.kill()
    wait_until(lambda: not Path(f"/proc/{engine}").exists() or _is_zombie(engine))


def _is_zombie(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z")
    return True


def wait_until(holds: Callable[[], bool]) -> None:
    end = monotonic() + 10
    while not holds():
        assert monotonic() < end


def test_constraints_are_compiled_beside_the_loop(checkpoint: Path) -> None:
    options = EngineOptionsFrame(
        model=str(checkpoint), backend="oracle", precision="f32", context=128, max_sequences=8
    )

    async def check() -> None:
        async with running(options) as engine:
            assert engine.state.ready is not None
            assert engine.state.ready.takes_constraints
            long = engine.submit([1, 2, 3], LONG)
            await long.next_event()
            choice = Constraint.choice(["yes", "no"])
            params = SamplingParams(constraint=choice, seed=3, max_tokens=20)
            events = await collect(engine.submit([9], params))
            assert events[-1].finish_reason == "stop"
            assert events[-1].timings is not None
            for constraint, field in (
                (Constraint.regex("("), "regex"),
                (Constraint.grammar("start: nothing"), "grammar"),
            ):
                with pytest.raises(RequestError, match="cannot be compiled") as caught:
                    await engine.submit([9], SamplingParams(constraint=constraint)).next_event()
                assert (caught.value.status, caught.value.field) == (400, field)
            # One that is cancelled while it compiles leaves nothing behind.
            engine.submit([9], params).close()
            repeated = SamplingParams(
                temperature=0.0, dry_multiplier=1.0, max_tokens=20, ignore_eos=True
            )
            assert len(tokens(await collect(engine.submit([9], repeated)))) == 20
            long.close()

    asyncio.run(check())
