"""Starts real server processes, and writes a tokenizer for the tiny checkpoint."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

# One client for all: each new one reads the certificates of the system. A test that has to be quick says
# so itself; elsewhere a busy machine is no failure.
http = httpx.Client(timeout=120.0)
CHECKPOINT = Path(__file__).parent / "data" / "llama"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Every byte is a token; the ids above are control tokens, so that any id decodes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: place for place, token in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|control{i}|>" for i in range(320 - len(vocab))])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str


def start(*arguments: str, environment: Mapping[str, str] | None = None) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "poot_serve.cli", *arguments, "--port", "0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if "curl " in line:
            match = re.search(r"http://[\d.]+:\d+", line)
            assert match is not None
            return Server(process, match[0])
    raise AssertionError("the server ended: " + "".join(lines))


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    server.process.communicate(timeout=30)
