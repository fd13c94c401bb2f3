"""``poot pull``, ``show``, ``ls``, ``generate`` and ``rm`` by hub id, against a stand-in of the hub.

Each command is a process of its own, as the hub's library reads its settings when it is imported.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

CHECKPOINT = Path(__file__).parent / "data" / "llama"
EXPECTED = json.loads((CHECKPOINT / "expected.json").read_text())
FILES = {name: (CHECKPOINT / name).read_bytes() for name in ("config.json", "model.safetensors")}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers for one repository, ``own/tiny``, as far as the hub's library asks."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        headers = {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}
        status, body = 200, b""
        if parts[:4] == ["api", "models", "own", "tiny"]:
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": _sha1(data)}
                for name, data in FILES.items()
            ]
            names = [{"rfilename": name} for name in FILES]
            info = {
                "id": "own/tiny",
                "sha": COMMIT,
                "siblings": names,
                "private": False,
                "tags": [],
            }
            body = json.dumps(listing if "tree" in parts else info).encode()
        elif parts[:3] == ["own", "tiny", "resolve"] and parts[-1] in FILES:
            body = FILES[parts[-1]]
            headers["ETag"] = f'"{_sha1(body)}"'
        else:
            status, body = 404, b"{}"
            headers["X-Error-Code"] = (
                "EntryNotFound" if parts[:2] == ["own", "tiny"] else "RepoNotFound"
            )
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_by_its_name(endpoint: str, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip

    def poot(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "poot_llm", *arguments], capture_output=True, text=True,
            env={**environment, **more}, check=False, timeout=200,
        )  # fmt: skip

    absent = poot("show", "own/tiny", HF_HUB_OFFLINE="1")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "does not give own/tiny" in absent.stderr.splitlines()[-1]
    pulled = poot("pull", "own/tiny")
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert folder.is_relative_to(tmp_path)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == FILES
    shown = json.loads(poot("show", "own/tiny", "--json", HF_HUB_OFFLINE="1").stdout)
    config = json.loads(FILES["config.json"])
    assert (shown["family"], shown["format"]) == ("llama", "safetensors")
    assert shown["layers"] == config["num_hidden_layers"]
    assert shown["vocab_size"] == config["vocab_size"]
    assert shown["tokenizer"] is None
    table = poot("show", "own/tiny", HF_HUB_OFFLINE="1").stdout
    assert "llama (safetensors)" in table
    assert "ids alone" in table
    (listed,) = json.loads(poot("ls", "--json").stdout)["models"]
    assert (listed["name"], listed["bytes"]) == ("own/tiny", sum(map(len, FILES.values())))
    answer = poot(
        "generate", "own/tiny", "--prompt-ids", ",".join(map(str, EXPECTED["prompt"])),
        "--max-tokens", "1", "--ignore-eos", "--backend", "oracle", "--precision", "f32", "--json",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert (found["prompt_ids"], found["output_ids"]) == (
        EXPECTED["prompt"],
        EXPECTED["greedy"][:1],
    )
    assert poot("rm", "own/tiny").returncode == 0
    assert json.loads(poot("ls", "--json").stdout) == {"models": []}
    unknown = poot("pull", "own/nothing")
    assert unknown.returncode == 1
    assert "does not give own/nothing" in unknown.stderr.splitlines()[-1]
