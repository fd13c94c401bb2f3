"""Prometheus metrics: of requests as the server sees them, and of the engine as it reports itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from time import time

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from poot_serve._engine_process import EngineProcess
from poot_serve._record import Record

__all__ = ["Metrics"]

disable_created_metrics()  # a series of creation times beside each counter that nobody reads

_LATENCY_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class Metrics:
    """All series of one server.

    Args:
        engine: Reports gauges and counters of its own.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self._registry = registry = CollectorRegistry()
        self.first_token = Histogram(
            "poot_time_to_first_token_seconds",
            "From the arrival of a request to its first token",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.inter_token = _TokenGaps()
        registry.register(self.inter_token)
        self._queue = Histogram(
            "poot_queue_time_seconds",
            "From the arrival of a sequence in the engine to its first step",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._whole = Histogram(
            "poot_request_duration_seconds",
            "From the arrival of a request that generates to the end of its answer",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._requests = Counter(
            "poot_requests",
            "HTTP requests by how they ended",
            ("path", "outcome"),
            registry=registry,
        )
        self._aborts = Counter(
            "poot_aborts",
            "Requests that ended before their answer was complete",
            ("cause",),
            registry=registry,
        )
        for cause in ("cancelled", "deadline", "failed"):
            self._aborts.labels(cause)
        self._prompt_tokens = Counter("poot_prompt_tokens", "Tokens of prompts", registry=registry)
        self._completion_tokens = Counter(
            "poot_completion_tokens", "Tokens of answers", registry=registry
        )
        registry.register(_EngineCollector(engine))

    def count(self, record: Record, route: str, duration_s: float) -> None:
        """Count a request that ended; ``route`` is a path of the server's, not the client's."""
        outcome = record.final_outcome
        self._requests.labels(route, outcome).inc()
        if outcome in {"cancelled", "deadline", "failed"}:
            self._aborts.labels(outcome).inc()
        if record.prompt_tokens:
            self._prompt_tokens.inc(record.prompt_tokens)
            self._completion_tokens.inc(record.completion_tokens)
            self._whole.observe(duration_s)
        if record.queue_s is not None:
            self._queue.observe(record.queue_s)

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)


class _TokenGaps(Collector):
    """A histogram that is written for every token, so without the locks of the library's own."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_TOKEN_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a gap; bounds of buckets are inclusive."""
        self._counts[bisect_left(_TOKEN_S, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the series."""
        bounds = [*map(str, _TOKEN_S), "+Inf"]
        yield HistogramMetricFamily(
            "poot_inter_token_latency_seconds",
            "Between two tokens of one sequence",
            buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
            sum_value=self._sum_s,
        )


class _EngineCollector(Collector):
    """Reads the engine's own report when asked."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._started_s = time()

    def collect(self) -> Iterator[Metric]:
        """Yield every series."""
        state = self._engine.state
        now = state.metrics
        ready = state.ready
        gauges = {
            "requests_running": ("Sequences with blocks", now.running),
            "requests_waiting": ("Sequences in the queue", now.waiting),
            "waiting_prompt_tokens": ("Prompt tokens not computed yet", now.waiting_tokens),
            "batch_size": ("Sequences of the last step", now.batch_rows),
            "batch_tokens": ("Tokens of the last step", now.batch_tokens),
            "kv_blocks_used": ("KV blocks that sequences hold", now.blocks_used),
            "kv_blocks_cached": ("KV blocks free but with content of use", now.blocks_cached),
            "kv_blocks_total": ("KV blocks of the pool", now.blocks_total),
            "engine_ready": ("Whether the engine takes requests", int(ready is not None)),
            "uptime_seconds": ("Since the server started", time() - self._started_s),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"poot_{name}", text, value)
        memory = GaugeMetricFamily(
            "poot_device_memory_bytes", "Memory of the device by use", labels=("use",)
        )
        if ready is not None:
            memory.add_metric(["weights"], ready.weight_bytes)
            memory.add_metric(["state"], ready.state_bytes)
            memory.add_metric(["workspace"], ready.workspace_bytes)
        yield memory
        counters = {
            "engine_restarts": ("Restarts of the engine process", state.restarts),
            "engine_steps": ("Steps", now.steps),
            "engine_steps_ahead": ("Steps handed over while another ran", now.steps_ahead),
            "engine_surplus_rows": ("Rows computed for ended sequences", now.surplus_rows),
            "engine_step_seconds": ("Time in steps", now.step_s),
            "engine_device_seconds": ("Time in the device's share of steps", now.device_s),
            "prefix_cache_query_tokens": ("Prompt tokens looked up", now.prefix_query_tokens),
            "prefix_cache_hit_tokens": ("Prompt tokens found", now.prefix_hit_tokens),
            "preemptions": ("Sequences put back for want of blocks", now.preemptions),
            "engine_faults": ("Sequences that a step failed", now.faults),
            "sequences_cancelled": ("Sequences cancelled", state.cancelled),
            "sequences_lost": ("Sequences lost with an engine", state.lost),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"poot_{name}", text, value)
