"""The record schema: what is written reads back, and what is wrong is refused by line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.record import Record, RecordError, read_records, write_records


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "model": "small", "engine": "one", "scenario": "decode", "repeat": 0,
        "started": "2026-01-02T03:04:05+00:00", "wall_s": 1.5, "metrics": {"decode_tok_s": 12.5},
    }  # fmt: skip
    return Record(**{**values, **changes})


def test_round_trip(tmp_path: Path) -> None:
    records = [record(), record(repeat=1, metrics={}, failure="it ended")]
    write_records(tmp_path, records)
    assert read_records(tmp_path) == records


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"speed": 1.0}}, "the metric 'speed' is unknown"),
        ({"metrics": {"decode_tok_s": float("nan")}}, "decode_tok_s is nan"),
        ({"metrics": {"decode_tok_s": -1.0}}, "decode_tok_s is -1.0"),
        ({"metrics": {"decode_tok_s": True}}, "no number"),
        ({"metrics": {}}, "either metrics or a failure"),
        ({"failure": "it ended"}, "either metrics or a failure"),
        ({"model": ""}, "model is ''"),
        ({"repeat": -1}, "repeat is -1"),
        ({"schema": 2}, "its schema is 2"),
    ],
)
def test_what_is_not_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        write_records(tmp_path, [record(**changes)])
    assert not (tmp_path / "records.jsonl").exists()


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    good = json.dumps(asdict(record()))
    missing = json.dumps({k: v for k, v in asdict(record()).items() if k != "wall_s"})
    (tmp_path / "records.jsonl").write_text(f"{good}\n{missing}\n")
    with pytest.raises(RecordError, match=r"records.jsonl:2: missing fields \['wall_s'\]"):
        read_records(tmp_path)
    (tmp_path / "records.jsonl").write_text("[1]\n")
    with pytest.raises(RecordError, match="a record is an object, not list"):
        read_records(tmp_path)
