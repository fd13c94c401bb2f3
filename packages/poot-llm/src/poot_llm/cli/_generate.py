"""``poot generate``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from poot_core import DeviceError
from poot_llm._answer import Output
from poot_llm._constraint import Constraint
from poot_llm._llm import LLM, Prompt
from poot_llm._open import OpenOptions
from poot_llm._sampling_params import SamplingParams
from poot_llm.cli._print import print_json, progress

__all__ = ["constraint_of", "run_generate"]


def constraint_of(json_schema: str | None, regex: str | None) -> Constraint | None:
    """Return what the options ask the answer to look like.

    Raises:
        BadParameter: If both are given, or a file cannot be read.
        RequestError: If the schema is no JSON.
    """
    if json_schema is not None and regex is not None:
        raise typer.BadParameter("--json-schema and --regex exclude each other")
    if regex is not None:
        return Constraint.regex(regex)
    if json_schema is None:
        return None
    if json_schema.startswith("@"):
        try:
            json_schema = Path(json_schema[1:]).read_text()
        except OSError as error:
            raise typer.BadParameter(f"--json-schema {json_schema}: {error.strerror}") from error
    return Constraint.json_schema(json_schema)


def run_generate(
    model: str,
    prompt: str | None,
    *,
    prompt_ids: str | None,
    is_chat: bool,
    system: str | None,
    params: SamplingParams,
    as_json: bool,
    options: OpenOptions,
) -> None:
    """Print the answer to one prompt, as it comes or as one JSON document."""
    if prompt_ids is not None and (prompt is not None or is_chat):
        raise typer.BadParameter("--prompt-ids stands in place of PROMPT and --chat")
    if system is not None and not is_chat:
        raise typer.BadParameter("--system needs --chat")
    given = _parse_ids(prompt_ids) if prompt_ids is not None else _read_text(prompt)
    with progress(f"loading {Path(model).name}"):
        llm = LLM.open(model, options)
    with llm:
        if isinstance(given, str) and is_chat:
            head = [] if system is None else [{"role": "system", "content": system}]
            given = llm.chat_ids([*head, {"role": "user", "content": given}])
        if as_json:
            print_json(_document(llm.generate([given], params)[0]))
        else:
            _print_stream(llm, given, params)


def _parse_ids(text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.replace(" ", ",").split(",") if part]
    except ValueError as error:
        raise typer.BadParameter(f"--prompt-ids takes ids such as 1,2,3: {error}") from error
    if not ids:
        raise typer.BadParameter("--prompt-ids is empty; it takes ids such as 1,2,3")
    return ids


def _read_text(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a PROMPT, --prompt-ids, or text on stdin")
    return sys.stdin.read()


def _document(output: Output) -> dict[str, object]:
    if output.error is not None:
        raise DeviceError(output.error)
    return {
        "prompt_ids": output.prompt_ids,
        "output_ids": output.output_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "timings": output.timings.to_dict(),
    }


def _print_stream(llm: LLM, prompt: Prompt, params: SamplingParams) -> None:
    last = None
    separator = ""
    for last in llm.stream(prompt, params):
        if last.text is None:  # no tokenizer: ids are all there is
            for token_id in last.token_ids:
                sys.stdout.write(f"{separator}{token_id}")
                separator = ","
        else:
            sys.stdout.write(last.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if last is not None and last.error is not None:
        raise DeviceError(last.error)
    if last is not None and last.timings is not None and sys.stderr.isatty():
        timings = last.timings
        rate = "" if timings.decode_tok_s is None else f", {timings.decode_tok_s:.1f} tokens/s"
        print(
            f"\x1b[2m[{last.finish_reason}; {timings.prompt_tokens} + {timings.output_tokens} "
            f"tokens, first after {timings.first_token_s:.2f} s{rate}]\x1b[0m",
            file=sys.stderr,
        )
