"""Every setting of the server: its name, type, default, range and what it is for.

One definition serves the command line (``--max-requests``), the environment (``POOT_MAX_REQUESTS``) and
the TOML file (``max-requests``); ``_settings_sources`` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poot_serve._parsing.formats import REASONING_NAMES, TOOL_NAMES

__all__ = ["AccessSettings", "EngineSettings", "Limits", "LogSettings", "Settings"]


def _setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a field with what a reader of settings has to know of it."""
    return field(
        default=default, metadata={"help": text, "low": low, "high": high, "choices": choices}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine process opens and how it fills its steps."""

    backend: str = _setting("auto", "auto, cpu, oracle or an installed device")
    precision: str = _setting("auto", "precision of activations", choices=("auto", "f32"))
    threads: int | None = _setting(None, "threads of the host CPU", low=1, high=1024)
    context: int | None = _setting(None, "longest sequence, tokens", low=1)
    max_sequences: int = _setting(32, "sequences in a step", low=1, high=1024)
    max_step_tokens: int = _setting(512, "tokens in a step", low=1, high=1 << 20)
    max_prefill_tokens: int | None = _setting(
        None, "prompt tokens in a step that also decodes", low=1
    )
    kv_bytes: int | None = _setting(
        None, "size of the KV pool in bytes; a share of free memory if not given", low=1
    )
    prefix_cache: bool = _setting(True, "share the blocks of earlier prompts")
    pooling: str | None = _setting(
        None,
        "how an encoder makes one vector, where its files do not say",
        choices=("mean", "cls", "last"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request, a client and all requests together may take."""

    max_requests: int = _setting(256, "sequences under way and waiting; more get 429", low=1)
    max_waiting_tokens: int = _setting(
        1 << 18, "prompt tokens waiting to be computed; more get 429", low=1
    )
    max_choices: int = _setting(128, "answers of one request (n)", low=1, high=128)
    max_body_bytes: int = _setting(16 << 20, "bytes of a request's body", low=1024)
    max_header_bytes: int = _setting(32 << 10, "bytes of a request's head", low=1024)
    rate_limit: float = _setting(0.0, "requests a minute from one client; 0 is no limit", low=0)
    rate_burst: int = _setting(20, "requests that one client may send at once", low=1)
    request_timeout_s: float = _setting(600.0, "seconds until a request is ended", low=0.001)
    keep_alive_s: float = _setting(
        15.0, "seconds of silence before a stream gets a comment", low=0.01
    )
    drain_timeout_s: float = _setting(
        60.0, "seconds that requests under way get when the server stops", low=0
    )
    step_deadline_s: float = _setting(
        300.0, "seconds of silence after which the engine is restarted", low=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Where the server listens, to whom it answers and under which names."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes any", low=0, high=65535)
    served_model_name: tuple[str, ...] = _setting((), "only accept this model name; repeatable")
    api_key: tuple[str, ...] = _setting((), "key that clients must send; repeatable")
    api_key_file: str | None = _setting(None, "file with one key a line")
    allow_origin: tuple[str, ...] = _setting(
        (), "origin that browsers may call from (CORS); repeatable"
    )
    web_page: bool = _setting(True, "serve the chat page at /")
    ssl_certfile: str | None = _setting(None, "certificate chain in PEM; with it HTTPS is spoken")
    ssl_keyfile: str | None = _setting(None, "its private key in PEM")
    tool_format: str = _setting("auto", "how the model writes tool calls", choices=TOOL_NAMES)
    reasoning_format: str = _setting(
        "auto", "how the model marks its reasoning", choices=REASONING_NAMES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is written down."""

    log_format: str = _setting("text", "form of the log on stderr", choices=("text", "json"))
    log_requests: bool = _setting(False, "one line a request; always there with --log-format json")
    log_prompts: bool = _setting(False, "write prompts into the log")
    otlp_endpoint: str | None = _setting(
        None, "send traces to this OTLP/HTTP endpoint (needs poot-serve[otel])"
    )
    debug: bool = _setting(False, "show tracebacks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    limits: Limits = field(default_factory=Limits)
    access: AccessSettings = field(default_factory=AccessSettings)
    log: LogSettings = field(default_factory=LogSettings)
