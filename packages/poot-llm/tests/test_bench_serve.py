"""The load test against a stand-in server whose every answer is known."""

import asyncio
import json
import threading
from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
import pytest

from poot_core import RequestError
from poot_llm.cli import _run
from poot_llm.cli._load_client import Served, Target, send
from poot_llm.cli._load_report import report
from poot_llm.cli._load_shape import Lengths, arrivals_s, prompts


class StandIn:
    """Streams as many pieces as were asked for, cut anywhere; a prompt that begins with 7 is refused."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.heads: list[str] = []
        self.most_under_way = 0
        self._under_way = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().split("content-length:")[1].split()[0])
        body = json.loads(await reader.readexactly(size))
        self.heads.append(head)
        self.bodies.append(body)
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        try:
            if body["prompt"][0] == 7:
                writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull")
                return
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            events = [{"choices": [{"index": 0, "text": "x"}]} for _ in range(body["max_tokens"])]
            usage = {
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": {"cached_tokens": 3},
            }
            events.append({"choices": [], "usage": usage})
            text = b": keep-alive\n\n"
            text += b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
            text += b"data: [DONE]\n\n"
            for at in range(0, len(text), 37):
                piece = text[at : at + 37]
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
        finally:
            self._under_way -= 1
            await writer.drain()
            writer.close()


@pytest.fixture
def server() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


def test_one_request(server: StandIn) -> None:
    served = asyncio.run(send(Target(url=server.url, model="m", api_key="k"), [5, 6], 9))
    assert served.error is None
    assert (served.status, served.output_tokens, len(served.pieces_s)) == (200, 9, 9)
    assert served.cached_tokens == 3
    assert served.start_s <= served.pieces_s[0] <= served.pieces_s[-1] <= served.end_s
    [body] = server.bodies
    assert body["prompt"] == [5, 6]
    assert (body["max_tokens"], body["model"], body["ignore_eos"]) == (9, "m", True)
    assert server.heads[0].startswith("POST /v1/completions HTTP/1.1")
    assert "Authorization: Bearer k" in server.heads[0]


def test_what_goes_wrong_is_told(server: StandIn) -> None:
    served = asyncio.run(send(Target(url=server.url), [7], 9))
    assert (served.status, served.error) == (429, "status 429: full")
    served = asyncio.run(send(Target(url="http://127.0.0.1:9"), [5], 9))
    assert served.status == 0
    assert "Error" in (served.error or "")
    with pytest.raises(RequestError, match="no URL"):
        Target(url="127.0.0.1:80")
    assert Target(url="http://h/api/").path == "/api/completions"


def test_the_command(server: StandIn, capsys, tmp_path) -> None:
    plot = tmp_path / "plot.svg"
    code = _run.run(
        ["bench-serve", server.url, "--requests", "12", "--input-tokens", "uniform:2:5",
         "--output-tokens", "4", "--shared-tokens", "3", "--concurrency", "3", "--json",
         "--goodput", "ttft:100000", "--plot", str(plot)],
    )  # fmt: skip
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["failed"]) == (12, 0)
    assert found["total_output_tokens"] == 48
    assert found["total_cached_tokens"] == 36
    bodies = server.bodies[1:]  # one warms up
    assert found["total_input_tokens"] == sum(len(body["prompt"]) for body in bodies)
    assert {len(body["prompt"]) - 3 for body in bodies} <= {2, 3, 4, 5}
    assert len({tuple(body["prompt"][:3]) for body in bodies}) == 1
    assert server.most_under_way <= 3
    assert found["request_goodput"] == found["request_throughput"] > 0
    assert found["median_ttft_ms"] <= found["p99_ttft_ms"] <= found["p99_e2el_ms"]
    assert len(ElementTree.parse(plot).findall(".//{*}polyline")) == 4
    assert _run.run(["bench-serve", server.url, "--requests", "2", "--output-tokens", "2"]) == 0
    assert "TTFT" in capsys.readouterr().out
    assert _run.run(["bench-serve", server.url, "--goodput", "speed:1"]) == 2
    assert "is no goal" in capsys.readouterr().err
    assert _run.run(["bench-serve", "http://127.0.0.1:9"]) == 1


def test_figures_by_hand() -> None:
    good = Served(10, 100.0, [100.5, 100.7, 101.1], 101.2, 3, status=200)
    slow = Served(20, 100.0, [102.0, 102.1], 102.1, 2, status=200)
    bad = Served(5, 100.0, [], 100.1, 0, status=429, error="status 429")
    found = report([good, slow, bad], 2.5, {"ttft": 1000.0, "tpot": 350.0})
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, {"status 429": 1})
    assert found["statuses"] == {"200": 2, "429": 1}
    assert found["output_throughput"] == pytest.approx(5 / 2.5)
    assert found["total_token_throughput"] == pytest.approx(35 / 2.5)
    assert found["request_goodput"] == pytest.approx(1 / 2.5)
    assert found["mean_ttft_ms"] == pytest.approx((500 + 2000) / 2)
    assert found["mean_tpot_ms"] == pytest.approx((300 + 100) / 2)
    assert found["median_itl_ms"] == pytest.approx(200)
    assert found["mean_e2el_ms"] == pytest.approx((1100 + 2100) / 2)
    empty = report([bad], 1.0, {})
    assert (empty["mean_ttft_ms"], empty["request_goodput"]) == (None, None)


def test_shapes_of_load() -> None:
    rng = np.random.default_rng(4)
    assert Lengths("128").draw(rng, 3).tolist() == [128] * 3
    uniform = Lengths("uniform:64:192").draw(rng, 4000)
    assert (uniform.min(), uniform.max()) == (64, 192)
    assert Lengths("normal:128:32").draw(rng, 4000).mean() == pytest.approx(128, rel=0.02)
    assert np.median(Lengths("lognormal:128:0.5").draw(rng, 4000)) == pytest.approx(128, rel=0.05)
    assert Lengths("normal:1:50").draw(rng, 1000).min() == 1
    for text in ("", "x", "uniform:5", "uniform:9:2", "normal:1:-1", "lognormal:0:1", "-3"):
        with pytest.raises(RequestError, match="distribution"):
            Lengths(text)
    assert arrivals_s(rng, 5, None, 1.0).tolist() == [0.0] * 5
    times = arrivals_s(rng, 4000, 20.0, 1.0)
    assert times[0] == 0.0
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.08)  # as a Poisson process has them
    assert np.diff(arrivals_s(rng, 4000, 20.0, 100.0)).std() < 0.2 / 20
    made = prompts(rng, np.array([2, 3]), num_shared=4, vocabulary=(10, 20))
    assert [len(each) for each in made] == [6, 7]
    assert made[0][:4] == made[1][:4]
    assert all(10 <= token < 20 for each in made for token in each)
