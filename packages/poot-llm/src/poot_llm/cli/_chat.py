"""``poot chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from poot_core import PootError, RequestError
from poot_llm._errors import ContextLengthError
from poot_llm._llm import LLM
from poot_llm._open import OpenOptions
from poot_llm._sampling_params import SamplingParams
from poot_llm.cli._print import progress

__all__ = ["ChatSettings", "Conversation", "run_chat"]

HELP = """\
/help            this list
/reset           forget the conversation
/system TEXT     set the system message (none without TEXT) and start over
/undo            take back the last question and its answer
/retry           answer the last question again
/history         show the conversation
/quit            leave; so does Ctrl-D
End a line with \\ to go on in the next. Ctrl-C stops an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What the command line asked for; None and neutral values leave room for the checkpoint's own."""

    system: str | None
    max_tokens: int | None
    temperature: float | None
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None

    def params(self, own: dict[str, object]) -> SamplingParams:
        """Return sampling parameters; ``own`` is what the checkpoint recommends."""
        temperature, top_k, top_p = self.temperature, self.top_k, self.top_p
        if temperature is None:
            found = own.get("temperature")
            temperature = float(found) if isinstance(found, int | float) else 0.7
            if top_k == 0 and isinstance(found := own.get("top_k"), int):
                top_k = found
            if top_p == 1.0 and isinstance(found := own.get("top_p"), int | float):
                top_p = float(found)
        return SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


@dataclass(slots=True)
class Conversation:
    """The messages so far."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, the system message first."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, *self.turns]

    def ask(self, text: str) -> None:
        """Add a question."""
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add an answer."""
        self.turns.append({"role": "assistant", "content": text})

    def undo(self) -> str | None:
        """Take back the last question and what follows; return it, or None where there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def drop_oldest(self) -> bool:
        """Forget the oldest question and its answer; return False where only the last is left."""
        users = [place for place, turn in enumerate(self.turns) if turn["role"] == "user"]
        if len(users) < 2:
            return False
        del self.turns[: users[1]]
        return True


class Terminal:
    """Reads lines and writes notices; answers alone go to stdout."""

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty()
        self._has_colour = sys.stderr.isatty()
        if self.is_interactive:
            with suppress(ImportError):  # line editing and history of input(), where there is any
                import_module("readline")

    def read(self) -> str | None:
        """Return a question, or None at the end."""
        lines: list[str] = []
        while True:
            try:
                line = input(("> " if not lines else ". ") if self.is_interactive else "")
            except EOFError:
                return "\n".join(lines) or None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def notice(self, text: str) -> None:
        """Write a line that is no part of an answer."""
        print(f"\x1b[2m{text}\x1b[0m" if self._has_colour else text, file=sys.stderr)


def run_chat(model: str, settings: ChatSettings, options: OpenOptions) -> None:
    """Talk until the input ends.

    Raises:
        RequestError: If a setting is out of its range; told before anything is loaded.
    """
    settings.params({})
    terminal = Terminal()
    with progress(f"loading {Path(model).name}"):
        llm = LLM.open(model, options)
    with llm:
        params = settings.params(llm.sampling_defaults)
        conversation = Conversation(settings.system)
        llm.chat_ids([{"role": "user", "content": "?"}])  # no chat template: say so at once
        terminal.notice(
            f"{Path(model).name} on {llm.info.device}, context {llm.info.options.context_tokens} "
            "tokens. /help lists commands."
        )
        while (text := _read(terminal)) is not None:
            if text.startswith("/"):
                text = _command(text, conversation, terminal)
                if text is None:
                    return
            if text.strip():
                _answer(llm, conversation, text, params, terminal)


def _read(terminal: Terminal) -> str | None:
    try:
        return terminal.read()
    except KeyboardInterrupt:
        terminal.notice("")
        return None


def _command(text: str, conversation: Conversation, terminal: Terminal) -> str | None:
    """Do what a command says; return a question to ask, empty for none, or None to leave."""
    name, _, rest = text.partition(" ")
    match name:
        case "/quit" | "/exit":
            return None
        case "/help":
            terminal.notice(HELP)
        case "/reset":
            conversation.turns.clear()
            terminal.notice("Forgotten.")
        case "/system":
            conversation.system = rest.strip() or None
            conversation.turns.clear()
            terminal.notice("System message set." if conversation.system else "No system message.")
        case "/undo":
            gone = conversation.undo()
            terminal.notice("There is nothing to undo." if gone is None else f"Took back: {gone}")
        case "/retry":
            again = conversation.undo()
            if again is not None:
                return again
            terminal.notice("There is no question yet.")
        case "/history":
            for message in conversation.messages:
                terminal.notice(f"{message['role']}: {message['content']}")
        case _:
            terminal.notice(f"{name} is no command; /help lists them.")
    return ""


def _answer(
    llm: LLM, conversation: Conversation, text: str, params: SamplingParams, terminal: Terminal
) -> None:
    conversation.ask(text)
    try:
        prompt = _fit(llm, conversation, terminal)
    except (RequestError, ContextLengthError) as error:
        conversation.undo()
        terminal.notice(str(error))
        return
    parts: list[str] = []
    stream = llm.stream_ids(prompt, params)
    try:
        for delta in stream:
            if delta.error is not None:
                terminal.notice(delta.error)
            parts.append(delta.text or "")
            sys.stdout.write(parts[-1])
            sys.stdout.flush()
            if delta.finish_reason == "length":
                terminal.notice("\n[the answer was cut at its token limit]")
    except KeyboardInterrupt:
        terminal.notice("\n[stopped]")
    except PootError:
        conversation.undo()
        raise
    finally:
        stream.close()
    sys.stdout.write("\n")
    sys.stdout.flush()
    conversation.answer("".join(parts))


def _fit(llm: LLM, conversation: Conversation, terminal: Terminal) -> list[int]:
    """Return the prompt, without the oldest turns where it would leave no room for an answer."""
    context = llm.info.options.context_tokens
    while True:
        ids = llm.chat_ids(conversation.messages)
        if len(ids) <= context * 3 // 4 or not conversation.drop_oldest():
            if len(ids) >= context:
                raise ContextLengthError.of(len(ids), context)
            return ids
        terminal.notice("[the context is nearly full: forgot the oldest question]")
