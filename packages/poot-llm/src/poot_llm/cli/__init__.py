"""The ``poot`` command: generate, chat, bench, show, graph, doctor."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    import os
    import signal
    import sys

    # An interrupt during the imports just ends the process: Python would print a traceback, and
    # modules in C turn it into an ImportError.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A stream that is closed is None in Python; what would go there goes nowhere.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    from poot_llm.cli._run import run

    signal.signal(signal.SIGINT, handler)
    sys.exit(run(sys.argv[1:]))
