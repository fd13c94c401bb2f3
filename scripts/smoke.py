"""Start ``poot-serve`` with no argument and ask its packaged model one question, streamed and not."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

QUESTION = "What is the capital of France? Answer in one sentence."
READY_S = 60.0


def post(url: str, body: dict[str, Any]) -> Any:
    """Return the open answer to a JSON request."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=60)


def wait_until_ready(process: subprocess.Popen[bytes], base: str) -> float:
    """Return the seconds until /health says ok, or end the program."""
    started = time.monotonic()
    while time.monotonic() - started < READY_S:
        try:
            urllib.request.urlopen(base + "/health", timeout=2).read()
        except OSError:
            if process.poll() is not None:
                sys.exit(f"poot-serve ended with {process.returncode}")
            time.sleep(0.05)
        else:
            return time.monotonic() - started
    sys.exit(f"poot-serve was not ready in {READY_S:.0f} s")


def ask(base: str) -> tuple[str, str]:
    """Return the answer as a whole and as a stream."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, "temperature": 0}
    whole = json.load(post(base + "/v1/chat/completions", body))["choices"][0]["message"]["content"]
    streamed = ""
    for line in post(base + "/v1/chat/completions", {**body, "stream": True}):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                streamed += choice["delta"].get("content") or ""
    return whole, streamed


def main() -> None:
    """Run the check; exit 1 with a line that says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18781)
    port = parser.parse_args().port
    base = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(["poot-serve", "--port", str(port)])
    try:
        ready_s = wait_until_ready(process, base)
        whole, streamed = ask(base)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    print(f"ready in {ready_s:.1f} s: {whole!r}")
    if whole != streamed or "Paris" not in whole:
        sys.exit(f"streamed {streamed!r}, whole {whole!r}: they must be the same and name Paris")
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
