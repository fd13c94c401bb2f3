"""Models by name against a local stand-in of the hub's HTTP, in processes of their own.

The hub's library reads its settings when it is imported, so each check is a fresh process.
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

import numpy as np
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BYTES = np.random.default_rng(7)
FILES = {
    "own/gguf": {"README.md": b"# hello", "model-Q4_0.gguf": BYTES.bytes(24 << 20)},
    "own/many": {"a-Q4_0.gguf": BYTES.bytes(1000), "a-Q8_0.gguf": BYTES.bytes(2000)},
    "own/tensors": {
        "config.json": b"{}", "model.safetensors": BYTES.bytes(70_000), "tokenizer.json": b"{}",
        "pytorch_model.bin": b"not wanted", "notes.md": b"not wanted",
    },
}  # fmt: skip


class Hub(ThreadingHTTPServer):
    """Serves ``FILES`` as the hub does, as far as its library asks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.breaks = 0  # how many downloads break off half way
        self.token: str | None = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.command, path, headers))
        if self.server.token and headers.get("authorization") != f"Bearer {self.server.token}":
            self._send(401, b'{"error": "no"}', {"X-Error-Code": "GatedRepo"}, with_body=with_body)
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], with_body=with_body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), "/".join(parts[4:]), headers, with_body=with_body)
        else:
            self._send(404, b"{}", {}, with_body=with_body)

    def _api(self, repo: str, rest: list[str], *, with_body: bool) -> None:
        files = FILES.get(repo)
        if files is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body=with_body)
            return
        if rest[:1] == ["tree"]:
            body: object = [
                {"type": "file", "path": name, "size": len(data), "oid": _sha1(data)}
                for name, data in files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in files]
            body = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        self._send(
            200,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            with_body=with_body,
        )

    def _file(self, repo: str, name: str, headers: dict[str, str], *, with_body: bool) -> None:
        data = FILES.get(repo, {}).get(name)
        if data is None:
            code = "EntryNotFound" if repo in FILES else "RepoNotFound"
            self._send(
                404, b"", {"X-Error-Code": code, "X-Repo-Commit": COMMIT}, with_body=with_body
            )
            return
        more = {"ETag": f'"{_sha1(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        wanted = headers.get("range", "")
        if wanted.startswith("bytes="):
            start = int(wanted[6:].split("-")[0])
            status = 206
            more["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if with_body and self.server.breaks:
            self.server.breaks -= 1
            self.send_response(status)
            for key, value in {**more, "Content-Length": str(len(data) - start)}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            self.close_connection = True
            return
        self._send(status, data[start:], more, with_body=with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(hub: Hub, home: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}", "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **more,
    }  # fmt: skip
    code = f"from poot_load import *\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False,
        timeout=100,
    )  # fmt: skip


def resolve(hub: Hub, home: Path, name: str, **more: str) -> Path:
    done = run(hub, home, f"print(resolve_model({name!r}))", **more)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_a_file_a_repository_and_a_part_of_a_name(hub: Hub, tmp_path: Path) -> None:
    names = ["own/gguf:model-Q4_0.gguf", "own/gguf", "own/many:q8_0", "own/tensors"]
    done = run(hub, tmp_path, f"print(*[resolve_model(name) for name in {names}], sep='\\n')")
    path, again, part, folder = map(Path, done.stdout.splitlines())
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes() == FILES["own/gguf"]["model-Q4_0.gguf"]
    assert again == path
    assert part.read_bytes() == FILES["own/many"]["a-Q8_0.gguf"]
    assert {each.name for each in folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == FILES["own/tensors"]["model.safetensors"]
    refused = [
        ("own/many", "name one as own/many:a-Q4_0.gguf, own/many:a-Q8_0.gguf"),
        ("own/many:Q5", "holds 0 GGUF files"),
        ("own/nothing", "does not give own/nothing"),
        ("own/gguf:missing.gguf", "does not give own/gguf:missing.gguf"),
    ]
    code = f"for name in {[name for name, _ in refused]}:\n"
    code += "    try: resolve_model(name)\n"
    code += "    except ValueError as error: print(type(error).__name__, error)"
    lines = run(hub, tmp_path, code).stdout.splitlines()
    assert len(lines) == len(refused)
    for line, (_, message) in zip(lines, refused, strict=True):
        assert line.startswith("CheckpointError ")
        assert message in line


def test_a_download_that_broke_off_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.breaks = 1
    path = resolve(hub, tmp_path, "own/gguf:model-Q4_0.gguf")
    assert path.read_bytes() == FILES["own/gguf"]["model-Q4_0.gguf"]
    ranges = [headers["range"] for command, _, headers in hub.seen if "range" in headers]
    assert any(int(each[6:].split("-")[0]) > 0 for each in ranges), ranges


def test_progress_is_told(hub: Hub, tmp_path: Path) -> None:
    done = run(
        hub, tmp_path,
        "seen = []\n"
        "resolve_model('own/gguf', lambda *each: seen.append(each))\n"
        "assert [d for _, d, _ in seen] == sorted(d for _, d, _ in seen)\n"
        "print(seen[-1])",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size = len(FILES["own/gguf"]["model-Q4_0.gguf"])
    assert done.stdout.strip().endswith(f", {size}, {size})")
    assert done.stderr == ""
    done = run(
        hub, tmp_path,
        "seen = []\nresolve_model('own/tensors', lambda *each: seen.append(each))\nprint(seen[-1])",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != ""


def test_a_token_is_sent_and_its_lack_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    done = run(hub, tmp_path, "resolve_model('own/gguf:model-Q4_0.gguf')")
    assert done.returncode == 1
    assert "does not give own/gguf" in done.stderr.strip().splitlines()[-1]
    assert resolve(hub, tmp_path, "own/gguf", HF_TOKEN="hf_secret").is_file()


def test_offline_uses_what_is_there(hub: Hub, tmp_path: Path) -> None:
    path = resolve(hub, tmp_path, "own/gguf")
    folder = resolve(hub, tmp_path, "own/tensors")
    hub.seen.clear()
    names = ["own/gguf", "own/gguf:Q4_0", "own/gguf:model-Q4_0.gguf", "own/tensors"]
    code = f"print(*[resolve_model(name) for name in {names}], sep='\\n')"
    done = run(hub, tmp_path, code, HF_HUB_OFFLINE="1")
    assert done.stdout.splitlines() == [str(path)] * 3 + [str(folder)], done.stderr
    assert hub.seen == []
    done = run(hub, tmp_path, "resolve_model('own/many:Q4_0')", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "does not give own/many:Q4_0" in done.stderr


def test_the_cache_is_listed_and_cleared(hub: Hub, tmp_path: Path) -> None:
    done = run(hub, tmp_path, "print(list_cached())")
    assert done.stdout.strip() == "[]"
    names = ["own/gguf", "own/many:Q4_0", "own/many:Q8_0", "own/tensors"]
    run(hub, tmp_path, f"for name in {names}: resolve_model(name)")
    code = "print(*[(m.name, m.path.exists()) for m in list_cached()], sep='\\n')"
    assert run(hub, tmp_path, code).stdout.splitlines() == [
        "('own/gguf:model-Q4_0.gguf', True)", "('own/many:a-Q4_0.gguf', True)",
        "('own/many:a-Q8_0.gguf', True)", "('own/tensors', True)",
    ]  # fmt: skip
    done = run(
        hub, tmp_path, "print(remove_cached('own/many:a-Q8_0.gguf'), remove_cached('own/gguf'))"
    )
    assert done.stdout.strip() == f"2000 {24 << 20}", done.stderr
    assert [line.split("'")[1] for line in run(hub, tmp_path, code).stdout.splitlines()] == [
        "own/many:a-Q4_0.gguf", "own/tensors",
    ]  # fmt: skip
    done = run(hub, tmp_path, "remove_cached('own/gguf')")
    assert "the cache holds no own/gguf; it holds: own/many:a-Q4_0.gguf, own/tensors" in done.stderr
