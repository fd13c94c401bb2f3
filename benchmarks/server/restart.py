"""From start to ready, and from the death of the engine to the first answer after it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.server.client import completion, post
from benchmarks.server.processes import child_of, poot_command, running
from benchmarks.server.results import Rounds, conditions

__all__ = ["measure_restart"]

_RETRY_S = 0.02
_GIVE_UP_S = 60.0


def measure_restart(model: Path, *, rounds: int) -> dict[str, Any]:
    """Return seconds from start to ready, and from a kill to an answer of one token.

    The client asks again every 20 ms, so what it sees of the death is the server's doing alone.
    """
    before = conditions()
    quiet = Rounds[tuple[float, float]]()
    command = poot_command(model, 8)
    with running(command):
        pass  # the caches are warm from here on
    both = [quiet.run(lambda: _once(command)) for _ in range(rounds)]
    ready, answered = [each[0] for each in both], [each[1] for each in both]
    return {
        **before,
        "start_to_ready_s": median(ready),
        "start_to_ready_s_rounds": ready,
        "killed_to_answer_s": median(answered),
        "killed_to_answer_s_rounds": answered,
        "others_share_rounds": quiet.shares,
    }


def _once(command: list[str]) -> tuple[float, float]:
    with running(command) as server:
        body = completion(range(1000, 1016), 1, stream=False)

        async def until_answered() -> float:
            if (await post(server.port, body)).status != 200:
                raise ValueError("the server does not answer")
            engine = child_of(server.process.pid)
            killed_s = perf_counter()
            os.kill(engine, signal.SIGKILL)
            while perf_counter() - killed_s < _GIVE_UP_S:
                answer = await post(server.port, body)
                if answer.status == 200:
                    return answer.ended_s - killed_s
                await asyncio.sleep(_RETRY_S)
            raise TimeoutError("the engine did not come back")

        return server.ready_s, asyncio.run(until_answered())
