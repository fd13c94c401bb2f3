"""Opening an engine: choose a backend, plan or read the plan, build kernels, lay weights out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from poot_core import DeviceCaps, PootError, Settings, SettingsError, Target
from poot_executor._engine import Engine, EngineOptions, WeightSource

if TYPE_CHECKING:
    from poot_executor._device import Device
    from poot_executor._kernel_table import KernelTable
    from poot_executor._program import Program
    from poot_graph_ir import Graph, TraceOptions
    from poot_kernel.compile import CompileService

__all__ = ["open_engine", "plan", "trace_options"]

_logger = logging.getLogger("poot.executor")

Trace = Callable[["TraceOptions"], "Graph"]
_SOURCES = (
    "poot_core",
    "poot_quant",
    "poot_graph_ir",
    "poot_kernel",
    "poot_kernelgen",
    "poot_executor",
)


def open_engine(
    trace: Trace,
    cache_key: str,
    weights: WeightSource,
    vocab_size: int,
    options: EngineOptions,
    settings: Settings,
) -> Engine:
    """Return an engine that is ready to run.

    A program and its kernels come from the kernel cache where they have been made before; then
    nothing is traced, planned or compiled.

    Args:
        trace: Traces the model for given pools; not called on a warm cache.
        cache_key: Names what ``trace`` returns: equal keys and options mean equal graphs.
        weights: Source of the weights; must outlive the engine.
        vocab_size: Width of a row of logits.
        options: What the caller asks.
        settings: What the environment asks.

    Raises:
        DeviceError: If the device is absent; says why.
        UnsupportedError: If the device cannot run the model; names the equation.
        SettingsError: If an option makes no sense, or no such backend is installed.
    """
    _check(options)
    if options.backend == "oracle":
        from poot_executor._oracle_engine import OracleEngine

        return OracleEngine(trace(trace_options(options)), weights, vocab_size, options)
    from poot_executor._device_runner import DeviceRunner
    from poot_executor._program_engine import ProgramEngine

    if options.backend == "reference":
        from poot_executor._reference_device import ReferenceDevice, reference_table
        from poot_kernel.compile import host_target

        reference = ReferenceDevice(host_target(settings))
        program = plan(trace, options, reference.target, check=settings.check)
        runner = DeviceRunner(
            reference, program, reference_table(program), weights, options, samples_in_numpy=True
        )
        return ProgramEngine(
            program, runner, options, backend="reference", device=reference.caps.name
        )
    from poot_executor._backends import open_backend
    from poot_kernel.compile import CompileService

    if options.device is not None:
        settings = replace(settings, device=options.device)
    opened = open_backend(options.backend, settings, options.threads)
    device = opened.device
    _logger.info("backend %s: %s", opened.name, opened.reason)
    own: CompileService | None = None
    try:
        service = getattr(device, "service", None)
        if service is None:
            service = own = CompileService(settings)
        program, table = _program(trace, cache_key, options, device, service, settings)
        service.release_workers()
        runner = DeviceRunner(device, program, table, weights, options)
    except BaseException:
        device.close()
        raise
    finally:
        if own is not None:
            own.close()
    name = f"{device.caps.name}, {device.target.arch} ({opened.reason})"
    return ProgramEngine(program, runner, options, backend=opened.name, device=name)


def _check(options: EngineOptions) -> None:
    if options.precision not in {"auto", "f32"}:
        raise SettingsError(f"precision is {options.precision!r}; it must be 'auto' or 'f32'")
    for name in (
        "context_tokens",
        "max_sequences",
        "max_step_tokens",
        "block_size",
        "num_blocks",
    ):
        if getattr(options, name) < 1:
            raise SettingsError(f"{name} is {getattr(options, name)}; it must be at least 1")
    if options.max_step_tokens < options.max_sequences:
        raise SettingsError(
            f"max_step_tokens is {options.max_step_tokens}, less than the "
            f"{options.max_sequences} sequences that a step may decode"
        )


def trace_options(options: EngineOptions, target: Target | None = None) -> TraceOptions:
    """Return how a model is traced for an engine.

    Precision f32 keeps keys and values in f32, ``auto`` in 16 bits: bf16 where the target multiplies
    pairs of it, which doubles the speed of attention, f16 elsewhere.
    """
    from poot_core import bf16, f16, f32
    from poot_graph_ir import TraceOptions

    narrow = bf16 if target is not None and "avx512bf16" in target.features else f16
    return TraceOptions(
        kv_dtype=f32 if options.precision == "f32" else narrow,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        max_blocks_per_row=options.max_blocks_per_row,
    )


def plan(
    trace: Trace,
    options: EngineOptions,
    target: Target,
    caps: DeviceCaps | None = None,
    *,
    check: bool = False,
) -> Program:
    """Trace a model and return its program for a target; nothing is compiled.

    Args:
        trace: Traces the model.
        options: Bounds and precision.
        target: Instruction set.
        caps: Facts of the device, on which weight layouts may depend; by default plain layouts.
        check: Whether the graph is verified after each pass.

    Raises:
        UnsupportedError: If the target cannot run the model; names the equation.
    """
    from poot_executor._compile import PlanOptions, compile_graph

    chosen = PlanOptions(
        precision=options.precision,
        max_tokens=options.max_step_tokens,
        max_logits=options.max_step_tokens,
        context_tokens=options.context_tokens,
        check=check,
    )
    if caps is not None:
        from poot_kernelgen import (
            joined_tile_for,
            query_tiles_for,
            shortest_split_for,
            weight_layout_for,
        )

        chosen = replace(
            chosen,
            layout=partial(weight_layout_for, target=target, caps=caps),
            query_tiles=query_tiles_for(target, caps),
            shortest_split=shortest_split_for(target, caps, options.block_size),
            joined_tile=partial(joined_tile_for, target=target, caps=caps),
        )
    return compile_graph(trace(trace_options(options, target)), target, chosen)


def _program(
    trace: Trace,
    cache_key: str,
    options: EngineOptions,
    device: Device,
    service: CompileService,
    settings: Settings,
) -> tuple[Program, KernelTable]:
    from poot_executor._codec import decode, encode

    target, caps = device.target, device.caps
    key = _program_key(cache_key, options, target, caps)
    blob = service.cache.get("program", key)
    if blob is not None:
        try:
            program, table = decode(blob)
        except (PootError, ValueError) as error:
            _logger.warning("cached program is dropped: %s", error)
        else:
            return program, table
    from poot_executor._build_kernels import build_kernels

    program = plan(trace, options, target, caps, check=settings.check)
    table = build_kernels(program, target, caps, service)
    service.cache.put("program", key, encode((program, table)))
    return program, table


def _program_key(cache_key: str, options: EngineOptions, target: Target, caps: DeviceCaps) -> str:
    from poot_kernel.compile import source_fingerprint

    # What a plan does not depend on is left out: where it runs, by how many threads, on how much.
    plain = replace(options, backend="", device=None, threads=None)
    facts = replace(caps, name="", memory_bytes=0)
    parts = (cache_key, repr(plain), str(target), repr(facts), source_fingerprint(*_SOURCES))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
