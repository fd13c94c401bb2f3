"""Reports and plots over records that are made here."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.harness.__main__ import main
from benchmarks.harness.record import Record, write_records

ENVIRONMENT = {"processor": "Some CPU", "commit": "abc1234", "cores": 2, "engines": {"one": "1.0"}}
NOISE = (0.97, 1.0, 1.01, 0.99, 1.03)


def folder(path: Path, speeds: dict[str, float], repeats: int = 5) -> Path:
    """Write a results folder: decode speed of each engine with fixed noise."""
    path.mkdir()
    records = [
        Record(
            model="small", engine=engine, scenario="decode", repeat=i, started="2026-01-02",
            wall_s=1.0, metrics={"decode_tok_s": speed * NOISE[i], "peak_memory_bytes": 2e8},
        )
        for engine, speed in speeds.items()
        for i in range(repeats)
    ]  # fmt: skip
    records.append(
        Record(
            model="small", engine="one", scenario="start", repeat=0, started="2026-01-02",
            wall_s=1.0, failure="ended with 1: no | model",
        )
    )  # fmt: skip
    write_records(path, records)
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    return path


def test_report_says_medians_ranges_and_what_is_real(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", {"one": 100.0, "two": 200.0, "three": 100.5})
    assert main(["report", str(run)]) == 0
    text = (run / "report.md").read_text()
    assert "100 (97 to 103, 5)" in text
    assert "200 (194 to 206, 5), **2.00x**" in text
    three = next(line for line in text.splitlines() if "decode (tokens/s)" in line).split("|")[-2]
    assert "x" in three
    assert "**" not in three
    assert "200 (200 to 200, 5), 1.00x" in text  # memory in MB
    assert "small/one/start 0: ended with 1" in text


def test_plot_has_a_point_for_every_repeat(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", {"one": 100.0, "<two>": 200.0})
    assert main(["report", str(run)]) == 0
    root = ElementTree.parse(run / "plot.svg").getroot()
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 2 + 2 * 2 * 5  # a legend, then two metrics of two engines
    width = float(root.attrib["width"])
    assert all(0 < float(circle.attrib["cx"]) < width for circle in circles)


def test_comparison(tmp_path: Path, capsys) -> None:
    before = folder(tmp_path / "before", {"one": 100.0, "two": 100.0, "gone": 1.0})
    after = folder(tmp_path / "after", {"one": 60.0, "two": 101.0})
    assert main(["compare", str(before), str(after)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| small")]
    assert len(rows) == 4
    assert rows[0].startswith("| small/one/decode | decode |")
    assert rows[0].endswith("| 0.0079 | worse |")
    assert "0.600" in rows[0]
    assert rows[2].endswith("| no change |")
    assert main(["compare", str(before), str(after), "--fail-on-worse"]) == 1
    assert main(["compare", str(before), str(before), "--fail-on-worse"]) == 0


def test_too_few_repeats_are_not_called(tmp_path: Path, capsys) -> None:
    before = folder(tmp_path / "before", {"one": 100.0}, repeats=4)
    after = folder(tmp_path / "after", {"one": 50.0}, repeats=4)
    assert main(["compare", str(before), str(after), "--fail-on-worse"]) == 0
    assert "not called: fewer than 5 repeats a side" in capsys.readouterr().out


def test_a_missing_folder_is_one_line(tmp_path: Path, capsys) -> None:
    assert main(["report", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
