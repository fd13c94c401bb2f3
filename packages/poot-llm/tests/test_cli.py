import io
import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from llm_fakes import FakeEngine, greedy_answer
from llm_tokenizers import byte_level

from poot_core import CheckpointError, Settings
from poot_executor import Backend
from poot_llm import Tokenizer
from poot_llm._open import OpenedModel
from poot_llm.cli import _bench, _graph, _run  # all imported before open_model is replaced
from poot_llm.cli._chat import ChatSettings, Conversation
from poot_llm.cli._doctor import choose

BACKEND = byte_level(vocab_limit=300)
SIZE = BACKEND.get_vocab_size()
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


class Opener:
    """Stands in for ``open_model``; keeps what it was asked."""

    def __init__(self) -> None:
        self.has_text = True
        self.template: str | None = TEMPLATE
        self.asked: list = []
        self.ends: frozenset[int] = frozenset()
        self.engine = FakeEngine(SIZE, context_tokens=600, max_step_tokens=512, num_blocks=200)

    def __call__(self, path, options) -> OpenedModel:
        self.asked.append((path, options))
        if path == "broken.gguf":
            raise CheckpointError("broken.gguf: 'general.architecture' is 'x';\nfound no family")
        resources = ExitStack()
        resources.callback(self.engine.close)
        tokenizer = Tokenizer(BACKEND, chat_template=self.template) if self.has_text else None
        return OpenedModel(
            engine=self.engine, tokenizer=tokenizer, eos_token_ids=self.ends, resources=resources,
            load_s=0.25,
        )  # fmt: skip


@pytest.fixture
def opener(monkeypatch) -> Opener:
    opener = Opener()
    monkeypatch.setattr("poot_llm._open.open_model", opener)
    monkeypatch.setattr(_bench, "open_model", opener)
    monkeypatch.setattr(_graph, "open_model", opener)
    return opener


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = _run.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_ids_in_one_json_document_out(opener, capsys) -> None:
    code, out, err = run(
        capsys, "generate", "m.gguf", "--prompt-ids", "1,2,3", "--max-tokens", "8",
        "--temperature", "0", "--ignore-eos", "--json", "--backend", "oracle", "--precision", "f32",
        "--threads", "2", "--context", "64",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert err == ""
    assert list(document) == ["prompt_ids", "output_ids", "text", "finish_reason", "timings"]
    assert document["prompt_ids"] == [1, 2, 3]
    assert document["output_ids"] == greedy_answer([1, 2, 3], 8, SIZE)
    assert document["text"] == BACKEND.decode(document["output_ids"])
    assert document["finish_reason"] == "length"
    path, options = opener.asked[0]
    assert path == "m.gguf"
    assert (options.backend, options.precision, options.threads) == ("oracle", "f32", 2)
    assert options.context == 64
    assert opener.engine.closed == 1


def test_text_comes_as_a_stream_and_alone_on_stdout(opener, capsys, monkeypatch) -> None:
    expected = BACKEND.decode(greedy_answer(BACKEND.encode("The").ids, 5, SIZE)) + "\n"
    assert run(capsys, "generate", "m", "The", "--max-tokens", "5") == (0, expected, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO("The"))
    assert run(capsys, "generate", "m", "-", "--max-tokens", "5") == (0, expected, "")
    opener.has_text = False
    ids = ",".join(map(str, greedy_answer([7], 3, SIZE))) + "\n"
    assert run(capsys, "generate", "m", "--prompt-ids", "7", "--max-tokens", "3")[:2] == (0, ids)


def test_chat_applies_the_template(opener, capsys) -> None:
    _, out, _ = run(capsys, "generate", "m", "Hi", "--chat", "--system", "S", "--json")
    text = "<|im_start|>system S<|im_end|><|im_start|>user Hi<|im_end|><|im_start|>assistant "
    assert json.loads(out)["prompt_ids"] == BACKEND.encode(text).ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], ""),
        (["nonsense"], "No such command 'nonsense'"),
        (["generate"], "Missing argument"),
        (["generate", "m", "x", "--nope"], "No such option: --nope"),
        (["generate", "m", "--prompt-ids", "1,x"], "ids such as 1,2,3"),
        (["generate", "m", "x", "--prompt-ids", "1"], "in place of PROMPT"),
        (["generate", "m", "x", "--system", "s"], "--system needs --chat"),
        (["generate", "m", "x", "--threads", "0"], "threads"),
        (["generate", "m", "x", "--threads", "100000"], "threads"),
        (["generate", "m", "x", "--precision", "f64"], "precision"),
        (["graph", "m", "--stage", "x"], "graph, plan"),
        (["generate", "m", "--prompt-ids", ""], "--prompt-ids is empty"),
        (["generate", "m", "--prompt-ids", " , "], "--prompt-ids is empty"),
        (["generate", "m", "x", "--temperature", "-1"], "temperature is -1.0; it must be a finite"),
        (["generate", "m", "x", "--top-p", "0"], "top_p is 0.0"),
        (["generate", "m", "x", "--json-schema", "{"], "the JSON schema is no JSON"),
        (["chat", "m", "--temperature", "-1"], "temperature is -1.0"),
        (["bench-serve", "http://127.0.0.1:1", "--goodput", "x"], "is no goal"),
        (["bench-serve", "http://127.0.0.1:1", "--input-tokens", "odd:1"], "odd:1"),
    ],
)
def test_wrong_usage_ends_with_2(opener, capsys, arguments, message) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == (2 if arguments else 0)
    assert not opener.asked
    if arguments:
        assert out == ""
        assert message in err.strip().splitlines()[-1]


def test_what_goes_wrong_ends_with_1_and_its_message_last(opener, capsys) -> None:
    code, out, err = run(capsys, "generate", "broken.gguf", "x")
    lines = err.strip().splitlines()
    assert (code, out) == (1, "")
    assert lines[-1] == "broken.gguf: 'general.architecture' is 'x'; found no family"
    assert "Traceback" not in err
    code, _, err = run(capsys, "generate", "broken.gguf", "x", "--debug")
    assert "Traceback" in err
    assert err.strip().splitlines()[-1] == lines[-1]
    opener.template = None
    code, _, err = run(capsys, "generate", "m", "x", "--chat")
    assert (code, "no chat template" in err.splitlines()[-1]) == (1, True)


def test_bench_prints_exactly_its_figures(opener, capsys, monkeypatch) -> None:
    monkeypatch.setattr(_bench, "first_token_s", lambda *_, **__: 0.5)
    opener.engine.read_bandwidth_gb_s = lambda nbytes: 20.0
    code, out, _ = run(
        capsys, "bench", "m", "--prefill", "40", "--decode", "6", "--repeat", "2", "--json"
    )
    document = json.loads(out)
    assert code == 0
    assert list(document) == [
        "prefill_tok_s", "decode_tok_s", "load_s", "first_token_s", "peak_rss_mb", "read_gb_s",
        "samples",
    ]  # fmt: skip
    assert document["load_s"] == 0.25
    assert document["read_gb_s"] == 20.0
    assert {name: len(values) for name, values in document["samples"].items()} == {
        "prefill_tok_s": 2, "decode_tok_s": 2, "read_gb_s": 2, "first_token_s": 2,
    }  # fmt: skip
    measured = opener.engine.steps
    assert measured[-7:] == [(40, 1)] + [(1, 1)] * 6
    assert opener.asked[0][1].context is None
    code, _, err = run(capsys, "bench", "m", "--prefill", "9", "--decode", "800")
    assert (code, "need 801" in err.splitlines()[-1]) == (2, True)
    code, out, _ = run(capsys, "bench", "m", "--prefill", "9", "--decode", "3", "--repeat", "1")
    assert "decode_tok_s" in out
    assert re.search(r"and sampler at R = \d+, MB +[\d.]+( \+ [\d.]+){3}\s", out)
    assert re.search(r"recorded ahead, seconds +0, ", out)
    left = 5

    def capture_ahead() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    opener.engine.capture_ahead = capture_ahead
    code, out, _ = run(capsys, "bench", "m", "--prefill", "9", "--decode", "3", "--repeat", "1")
    assert re.search(r"recorded ahead, seconds +5, ", out)


def test_bench_measures_what_a_short_context_holds(opener, capsys, monkeypatch) -> None:
    monkeypatch.setattr(_bench, "first_token_s", lambda *_, **__: 0.5)
    opener.engine = FakeEngine(SIZE, context_tokens=100, max_step_tokens=512, num_blocks=200)
    code, _, err = run(capsys, "bench", "m", "--repeat", "1")
    assert (code, "the context is 100: measuring 99 prompt tokens and 99 steps" in err) == (0, True)
    assert opener.engine.steps[-100:] == [(99, 1)] + [(1, 1)] * 99
    code, _, err = run(capsys, "bench", "m", "--repeat", "1", "--depth", "60", "--batch", "2")
    assert (code, "99 prompt tokens and 37 steps" in err) == (0, True)
    code, _, err = run(capsys, "bench", "m", "--prefill", "100")
    assert (code, "need 101" in err.splitlines()[-1]) == (2, True)


def test_a_conversation_in_the_terminal(opener, capsys, monkeypatch) -> None:
    typed = ["/help", "Hi \\", "there", "/retry", "/nonsense", "/system Be brief", "/undo", "Bye"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(typed) + "\n"))
    code, out, err = run(capsys, "chat", "m", "--temperature", "0", "--max-tokens", "4")

    def answer(text: str) -> str:
        return BACKEND.decode(greedy_answer(BACKEND.encode(text).ids, 4, SIZE))

    first = answer("<|im_start|>user Hi \nthere<|im_end|><|im_start|>assistant ")
    last = answer(
        "<|im_start|>system Be brief<|im_end|><|im_start|>user Bye<|im_end|><|im_start|>assistant "
    )
    assert code == 0
    assert out == f"{first}\n{first}\n{last}\n"
    for text in ("/reset", "no command", "System message set", "nothing to undo", "cut at its"):
        assert text in err


def test_chat_needs_a_template(opener, capsys) -> None:
    opener.template = None
    code, _, err = run(capsys, "chat", "m")
    assert (code, "no chat template" in err.splitlines()[-1]) == (1, True)


def test_conversation_bookkeeping() -> None:
    talk = Conversation(system="S")
    for text in ("a", "b", "c"):
        talk.ask(text)
        talk.answer(text.upper())
    assert talk.drop_oldest()
    assert [m["content"] for m in talk.messages] == ["S", "b", "B", "c", "C"]
    assert talk.undo() == "c"
    assert not talk.drop_oldest()
    assert talk.undo() == "b"
    assert talk.undo() is None


def test_chat_takes_the_checkpoints_own_sampling() -> None:
    neutral = {
        "system": None, "max_tokens": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        "repetition_penalty": 1.0, "seed": None,
    }  # fmt: skip
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    params = ChatSettings(temperature=None, **neutral).params(own)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)
    params = ChatSettings(temperature=0.1, **neutral).params(own)
    assert (params.temperature, params.top_k, params.top_p) == (0.1, 0, 1.0)
    assert ChatSettings(temperature=None, **neutral).params({}).temperature == 0.7


def test_doctor_says_what_auto_takes(capsys) -> None:
    def backend(name: str, usable: bool) -> Backend:
        return Backend(name=name, is_usable=usable, detail="")

    found = [backend("ptx", False), backend("cpu", True), backend("oracle", True)]
    chosen, why = choose(found, Settings())
    assert chosen == "cpu"
    assert "ptx does not open" in why
    assert choose([found[0], found[2]], Settings())[0] is None
    assert choose(found, Settings(backend="oracle"))[0] == "oracle"
    seen = [backend("ptx", True), *found[1:]]
    assert choose(seen, Settings())[0] == "ptx"
    assert choose(seen, Settings(hide_devices=True))[0] == "cpu"
    emulated = Backend(name="vulkan", is_usable=True, detail="", is_software=True)
    assert choose([emulated, *found], Settings())[0] == "cpu"
    code, out, _ = run(capsys, "doctor", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"oracle"} <= {found["name"] for found in document["backends"]}


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_closed_stream_is_no_fault(descriptor) -> None:
    # "doctor" writes to stdout, a missing model to stderr.
    code = (
        f"import os, sys; os.close({descriptor}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'poot_llm', *sys.argv[1:]])"
    )
    for arguments, ends in ((["doctor"], 0), (["generate", "no such model", "x"], 1)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == ends
        assert "fault" not in done.stderr
        assert done.stdout == "" or (descriptor != 1 and ends == 0)


def test_an_interrupt_before_anything_runs_prints_nothing() -> None:
    # The imports of the command are the first thing that takes time: interrupted in their midst.
    code = (
        "import builtins, os, signal, sys\n"
        # A background job starts with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "plain = builtins.__import__\n"
        "def slow(name, *rest):\n"
        "    if name == 'poot_llm.cli._run': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return plain(name, *rest)\n"
        "builtins.__import__ = slow\n"
        "from poot_llm.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_starting_imports_no_more_than_it_needs() -> None:
    code = (
        "import sys, poot_llm; print('numpy' in sys.modules);"
        "import poot_llm.cli._run, poot_llm.cli._generate;"
        "print([m for m in ('rich', 'jinja2', 'llvmlite', 'tokenizers', 'huggingface_hub', "
        "'asyncio', 'msgspec', 'pydantic') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert out.splitlines() == ["False", "[]"]


def test_fetched_models_are_listed_and_removed(capsys, monkeypatch) -> None:
    from poot_llm.cli import _models
    from poot_load import CachedModel

    models = [
        CachedModel(
            name="own/er:a.gguf", path=Path("/hub/a.gguf"), nbytes=98_000_000, modified=1e9
        ),
        CachedModel(name="own/er", path=Path("/hub/er"), nbytes=5, modified=1.5e9),
    ]
    monkeypatch.setattr(_models, "list_cached", lambda: models)
    monkeypatch.setattr(_models, "remove_cached", lambda name: {"own/er": 5}[name])
    monkeypatch.setattr(_models, "resolve_model", lambda name: Path("/hub") / name)
    assert run(capsys, "pull", "own/er") == (0, "/hub/own/er\n", "")
    code, out, _ = run(capsys, "ls", "--json")
    found = json.loads(out)["models"]
    assert code == 0
    assert [model["name"] for model in found] == ["own/er", "own/er:a.gguf"]
    assert found[1] == {
        "name": "own/er:a.gguf", "path": "/hub/a.gguf", "bytes": 98_000_000, "modified": 1e9
    }  # fmt: skip
    _, out, _ = run(capsys, "ls")
    assert "own/er:a.gguf" in out
    assert "98.0 MB" in out
    assert run(capsys, "rm", "own/er") == (0, "own/er: 5 bytes freed\n", "")
    monkeypatch.setattr(_models, "list_cached", list)
    assert "poot pull" in run(capsys, "ls")[2]


def test_an_answer_of_a_shape(opener, capsys, tmp_path) -> None:
    opener.ends = frozenset([BACKEND.token_to_id("<|im_end|>")])
    code, out, _ = run(capsys, "generate", "m", "The", "--regex", "[ab]{3}", "--max-tokens", "9")
    assert (code, set(out.strip()) <= {"a", "b"}, len(out.strip())) == (0, True, 3)
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [17]}')
    for given in (schema.read_text(), f"@{schema}"):
        assert run(capsys, "generate", "m", "The", "--json-schema", given)[1].strip() == "17"
    assert run(capsys, "generate", "m", "x", "--json-schema", "@/no/file")[0] == 2
    assert run(capsys, "generate", "m", "x", "--json-schema", "{")[0] == 2
    assert run(capsys, "generate", "m", "x", "--json-schema", "{}", "--regex", "a")[0] == 2
