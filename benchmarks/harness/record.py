"""One measurement: the schema of a line in records.jsonl, and what each metric means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["METRICS", "SCHEMA", "Metric", "Record", "RecordError", "read_records", "write_records"]

SCHEMA = 1  # raise it when a field changes its meaning


class RecordError(ValueError):
    """A line is no record of this schema."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What a figure means.

    Attributes:
        title: For people.
        unit: Of the figure.
        higher_is_better: Which way is up.
        scale: What divides the figure when it is shown.
    """

    title: str
    unit: str
    higher_is_better: bool
    scale: float = 1.0


METRICS: Mapping[str, Metric] = {
    "prefill_tok_s": Metric("prefill", "tokens/s", True),
    "decode_tok_s": Metric("decode", "tokens/s", True),
    "read_gb_s": Metric("pure read", "GB/s", True),
    "read_share": Metric("decode, share of the read bound", "", True),
    "first_token_s": Metric("process start to first token", "s", False),
    "ttft_p50_s": Metric("time to first token, median", "s", False),
    "ttft_p95_s": Metric("time to first token, 95%", "s", False),
    "itl_p50_s": Metric("gap between tokens, median", "s", False),
    "itl_p99_s": Metric("gap between tokens, 99%", "s", False),
    "output_tok_s": Metric("answers of all clients", "tokens/s", True),
    "peak_memory_bytes": Metric("peak memory of the process tree", "MB", False, 1e6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one run of one cell gave.

    Attributes:
        model: Name in the manifest.
        engine: Name in the manifest.
        scenario: Name in the manifest.
        repeat: Which repeat it is, from 0; engines take turns within one.
        started: UTC, ISO 8601.
        wall_s: Of the whole process.
        metrics: Figures by the names of ``METRICS``; memory is sampled from outside.
        failure: Why there are no figures, or None.
        schema: Version of this record.
    """

    model: str
    engine: str
    scenario: str
    repeat: int
    started: str
    wall_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    schema: int = SCHEMA

    @property
    def cell(self) -> tuple[str, str, str]:
        """Model, engine and scenario."""
        return self.model, self.engine, self.scenario


def check(raw: Any) -> Record:
    """Return a record from a decoded line.

    Raises:
        RecordError: If a field is missing, unknown or of the wrong type, a metric is unknown, or a
            figure is not finite.
    """
    if not isinstance(raw, dict):
        raise RecordError(f"a record is an object, not {type(raw).__name__}")
    if raw.get("schema") != SCHEMA:
        raise RecordError(f"its schema is {raw.get('schema')!r}; this harness reads {SCHEMA}")
    known = {f.name for f in fields(Record)}
    if set(raw) != known:
        raise RecordError(
            f"missing fields {sorted(known - set(raw))}, unknown {sorted(set(raw) - known)}"
        )
    for name in ("model", "engine", "scenario", "started"):
        if not isinstance(raw[name], str) or not raw[name]:
            raise RecordError(f"{name} is {raw[name]!r}, no text")
    if type(raw["repeat"]) is not int or raw["repeat"] < 0:
        raise RecordError(f"repeat is {raw['repeat']!r}, no count")
    for name, value in {"wall_s": raw["wall_s"], **raw["metrics"]}.items():
        if name != "wall_s" and name not in METRICS:
            raise RecordError(f"the metric {name!r} is unknown; there are {sorted(METRICS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RecordError(f"{name} is {value!r}, no number")
        if not math.isfinite(value) or value < 0:
            raise RecordError(f"{name} is {value}")
    if (raw["failure"] is None) != bool(raw["metrics"]):
        raise RecordError("a record has either metrics or a failure")
    return Record(**raw)


def read_records(folder: Path) -> list[Record]:
    """Return the records of a results folder; an error names the line."""
    path = folder / "records.jsonl"
    records: list[Record] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            records.append(check(json.loads(line)))
        except ValueError as error:
            raise RecordError(f"{path}:{number}: {error}") from error
    return records


def write_records(folder: Path, records: Iterable[Record]) -> None:
    """Write records.jsonl, each record checked first."""
    lines = [json.dumps(asdict(check(asdict(record)))) for record in records]
    (folder / "records.jsonl").write_text("".join(line + "\n" for line in lines))
