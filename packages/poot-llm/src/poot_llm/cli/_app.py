"""The commands and their options; what a command does is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from poot_llm._open import OpenOptions

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,  # rich takes as long to import as everything else here
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Run a language model on this machine. --debug after any command shows tracebacks.",
)

Model = Annotated[
    str, typer.Argument(help="A GGUF file, a directory of safetensors, or a hub id (see pull).")
]
HubModel = Annotated[
    str,
    typer.Argument(help="owner/name, owner/name:file.gguf, or owner/name:Q4_K_M.", metavar="MODEL"),
]
Backend = Annotated[str, typer.Option(help="auto, oracle or the name of a device.")]
Precision = Annotated[
    Literal["auto", "f32"], typer.Option(help="auto (fastest of checked accuracy) or f32.")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of the host CPU.")]
Context = Annotated[int | None, typer.Option(min=1, help="Longest sequence in tokens.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")]
TopK = Annotated[int, typer.Option(min=-1, help="Draw from the k most likely tokens; 0 from all.")]
TopP = Annotated[float, typer.Option(help="Draw from the most likely tokens up to this mass.")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than this times the best.")]
Repetition = Annotated[float, typer.Option(help="Above 1, tokens seen before weigh less.")]
Presence = Annotated[float, typer.Option(help="Taken off the logits of tokens of the answer.")]
Frequency = Annotated[float, typer.Option(help="The same for each time a token stands there.")]
Seed = Annotated[int | None, typer.Option(help="Makes a drawn answer repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"poot {version('poot-llm')}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Hold the options that stand before a command."""


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="Text; - or none reads stdin.")] = None,
    prompt_ids: Annotated[str | None, typer.Option(help="Token ids, such as 1,2,3.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    dry_multiplier: Annotated[
        float, typer.Option(help="Above 0, going on with a repetition costs (DRY).")
    ] = 0.0,
    xtc_probability: Annotated[
        float, typer.Option(help="How often the likeliest tokens are left out (XTC).")
    ] = 0.0,
    json_schema: Annotated[
        str | None, typer.Option(help="The answer is JSON of this schema; @FILE reads one.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The answer matches this pattern.")] = None,
    seed: Seed = None,
    stop: Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end.")] = False,
    backend: Backend = "auto",
    precision: Precision = "auto",
    threads: Threads = None,
    context: Context = None,
    json: Json = False,
) -> None:
    """Continue a text, or answer it with --chat."""
    from poot_llm._sampling_params import SamplingParams
    from poot_llm.cli._generate import constraint_of, run_generate

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        dry_multiplier=dry_multiplier,
        xtc_probability=xtc_probability,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        constraint=constraint_of(json_schema, regex),
    )
    run_generate(
        model,
        prompt,
        prompt_ids=prompt_ids,
        is_chat=chat,
        system=system,
        params=params,
        as_json=json,
        options=_options(backend, precision, threads, context),
    )


@app.command()
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Annotated[
        float | None, typer.Option(help="By default what the checkpoint recommends, or 0.7.")
    ] = None,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    seed: Seed = None,
    backend: Backend = "auto",
    precision: Precision = "auto",
    threads: Threads = None,
    context: Context = None,
) -> None:
    """Talk with a chat model in the terminal."""
    from poot_llm.cli._chat import ChatSettings, run_chat

    settings = ChatSettings(
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    run_chat(model, settings, _options(backend, precision, threads, context))


@app.command()
def bench(
    model: Model,
    prefill: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the prompt; 512 where the context holds them."),
    ] = None,
    decode: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the answer; 128 where the context holds them."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each figure.")] = 5,
    depth: Annotated[int, typer.Option(min=0, help="Tokens in the context before decode.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 1,
    backend: Backend = "auto",
    precision: Precision = "auto",
    threads: Threads = None,
    context: Context = None,
    json: Json = False,
) -> None:
    """Measure speed, memory and the time to start."""
    from poot_llm.cli._bench import run_bench

    run_bench(
        model,
        prefill=prefill,
        decode=decode,
        repeat=repeat,
        depth=depth,
        batch=batch,
        as_json=json,
        options=_options(backend, precision, threads, context),
    )


@app.command(name="bench-serve")
def bench_serve(
    url: Annotated[str, typer.Argument(help="A server, such as http://127.0.0.1:8080.")],
    requests: Annotated[int, typer.Option(min=1, help="Requests.")] = 100,
    input_tokens: Annotated[
        str,
        typer.Option(help="Prompt lengths: 128, uniform:64:192, normal:128:32, lognormal:128:0.5."),
    ] = "128",
    output_tokens: Annotated[str, typer.Option(help="Answer lengths, written alike.")] = "128",
    shared_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that all prompts begin with, in addition.")
    ] = 0,
    request_rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests a second; all at once without it.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(min=0.01, help="1: Poisson arrivals; less: bursts; more: even.")
    ] = 1.0,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Most requests under way.")] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="Goal in milliseconds, such as ttft:500; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name that requests carry.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key that requests carry.")] = None,
    seed: Annotated[int, typer.Option(help="Of lengths, tokens and arrivals.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write distributions to this SVG file.")] = None,
    json: Json = False,
) -> None:
    """Put a load on a server and measure what its clients see; figures as vllm bench serve has them."""
    from poot_llm.cli._bench_serve import LoadOptions, run_bench_serve
    from poot_llm.cli._load_client import Target

    run_bench_serve(
        Target(url=url, model=model, api_key=api_key),
        LoadOptions(
            num_requests=requests,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            shared_tokens=shared_tokens,
            rate=request_rate,
            burstiness=burstiness,
            concurrency=concurrency,
            seed=seed,
        ),
        goals=goodput or [],
        as_json=json,
        plot=plot,
    )


@app.command()
def show(model: Model, context: Context = None, json: Json = False) -> None:
    """Show what a checkpoint is and needs."""
    from poot_llm.cli._show import run_show

    run_show(model, context=context, as_json=json)


@app.command()
def pull(model: HubModel) -> None:
    """Fetch a model from the hub; every other command does so by itself."""
    from poot_llm.cli._models import run_pull

    run_pull(model)


@app.command(name="ls")
def list_models(json: Json = False) -> None:
    """List the models that were fetched from the hub."""
    from poot_llm.cli._models import run_list

    run_list(as_json=json)


@app.command(name="rm")
def remove_models(
    models: Annotated[list[str], typer.Argument(help="Names as ls shows them.")],
) -> None:
    """Delete fetched models from this machine."""
    from poot_llm.cli._models import run_remove

    run_remove(models)


@app.command()
def graph(
    model: Model,
    stage: Annotated[
        str, typer.Option(help="graph (as traced) or plan (the kernels of a step, in order).")
    ] = "plan",
    time: Annotated[
        bool, typer.Option("--time", help="Time each kernel beside its read bound.")
    ] = False,
    all_layers: Annotated[
        bool, typer.Option("--all-layers", help="Show layers that repeat an earlier one too.")
    ] = False,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the timed step.")] = 1,
    backend: Backend = "auto",
    precision: Precision = "auto",
    threads: Threads = None,
    context: Context = None,
) -> None:
    """Print a model's graph, its plan and its kernels."""
    from poot_llm.cli._graph import run_graph

    run_graph(
        model,
        stage=stage,
        is_timed=time,
        has_all_layers=all_layers,
        num_tokens=tokens,
        options=_options(backend, precision, threads, context),
    )


@app.command()
def kernels(
    model: Model,
    name: Annotated[str | None, typer.Argument(help="A kernel, or how its name begins.")] = None,
    target: Annotated[
        str,
        typer.Option(help="ptx:sm_90a, rocm:gfx1100, vulkan, wgpu, cpu and the like."),
    ] = "cpu",
    stage: Annotated[
        str,
        typer.Option(
            help="python, ir, llvm, spirv, wgsl, ptx, sass or assembly, where it has one."
        ),
    ] = "ir",
    precision: Precision = "auto",
    context: Context = None,
) -> None:
    """List a model's kernels for any target, or print a stage of one."""
    from poot_llm.cli._kernels import run_kernels

    run_kernels(
        model,
        name,
        target=target,
        stage=stage,
        options=_options("auto", precision, None, context),
    )


@app.command()
def doctor(json: Json = False) -> None:
    """Say which devices there are and which auto takes."""
    from poot_llm.cli._doctor import run_doctor

    run_doctor(as_json=json)


def _options(backend: str, precision: str, threads: int | None, context: int | None) -> OpenOptions:
    from poot_llm._open import OpenOptions

    # One sequence at a time: all commands share one plan, and its pool is as small as can be.
    return OpenOptions(
        backend=backend, precision=precision, threads=threads, context=context, max_sequences=1
    )
