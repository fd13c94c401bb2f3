"""Run every program of examples/ on the host CPU with a tiny model of random weights."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lane import environment_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from poot_test_util import load_lanes

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "packages" / "poot-llm" / "tests" / "data" / "llama"


def make_model(folder: Path) -> Path:
    """Return a model directory: random weights, and a tokenizer of single bytes."""
    made = Path(shutil.copytree(MODEL, folder / "model"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", *alphabet]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(made / "tokenizer.json"))
    return made


def problems_of(programs: Iterable[Path]) -> list[str]:
    """Return the programs that fail or print nothing."""
    lanes = load_lanes(ROOT)
    environment = environment_of(lanes.lanes["model-free"], lanes, software=False)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_model(Path(folder)))
        for program in programs:
            command = [sys.executable, "-W", "error", str(program), model]
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                problems.append(f"{program}: ended with {done.returncode}\n{done.stderr}")
            elif not done.stdout.strip():
                problems.append(f"{program}: printed nothing")
    return problems


def self_test() -> list[str]:
    """Return which bad programs pass."""
    attempts = {"a program that fails": "import sys; print(1); sys.exit(3)", "no output": "x = 1"}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        missed: list[str] = []
        for name, text in attempts.items():
            program.write_text(text)
            missed += [] if problems_of([program]) else [name]
    return missed


def main() -> int:
    """Run the examples, or test the check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", default="check", choices=["check", "self-test"])
    if parser.parse_args().command == "self-test":
        problems, good = self_test(), "examples that fail are noticed"
    else:
        programs = sorted((ROOT / "examples").rglob("*.py"))
        problems, good = problems_of(programs), f"{len(programs)} examples run"
    print("\n".join(problems) or good)
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
