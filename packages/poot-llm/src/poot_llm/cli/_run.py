"""Runs one command line: results on stdout, one readable error block on stderr, an exit code.

0 is success, 1 something went wrong, 2 wrong usage, 130 an interrupt. A value that cannot be (a
temperature below zero, a backend that does not exist) is wrong usage, wherever it is noticed.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from typer.exceptions import Abort, Exit, TyperException

from poot_core import PootError, RequestError, SettingsError
from poot_llm.cli._app import app

__all__ = ["run"]


def run(arguments: Sequence[str]) -> int:
    """Return the exit code of a command line."""
    wants_traceback = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    try:
        code = app(rest or ["--help"], prog_name="poot", standalone_mode=False)
        sys.stdout.flush()
    except Exit as exit_:
        return exit_.exit_code
    except TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, Abort):
        print("poot: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output went away; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RequestError, SettingsError) as error:
        return _refused(error, wants_traceback)
    except Exception as error:
        return _failure(error, wants_traceback)
    return code if isinstance(code, int) else 0


def _usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
        print(f"Try '{context.command_path} --help' for help.", file=sys.stderr)
    print(_one_line(error.format_message()), file=sys.stderr)
    return error.exit_code


def _refused(error: PootError, wants_traceback: bool) -> int:
    if wants_traceback:
        traceback.print_exception(error, file=sys.stderr)
    print(_one_line(f"poot: {error.message}"), file=sys.stderr)
    return 2


def _failure(error: Exception, wants_traceback: bool) -> int:
    if wants_traceback:
        traceback.print_exception(error, file=sys.stderr)
    is_ours = isinstance(error, PootError | OSError)
    kind = type(error).__name__
    title = f"poot: {kind}" if is_ours else f"poot: unexpected {kind}, a fault of poot's own"
    hint = "" if wants_traceback else " (--debug shows where)"
    if sys.stderr.isatty():
        title = f"\x1b[1;31m{title}\x1b[0m"
    print(title + hint, file=sys.stderr)
    print(_one_line(str(error) or kind), file=sys.stderr)
    return 1


def _one_line(text: str) -> str:
    return " ".join(text.split())
