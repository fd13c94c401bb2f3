"""The ``poot`` command: generate, chat, bench, show, graph, doctor."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    import sys

    from poot_llm.cli._run import run

    sys.exit(run(sys.argv[1:]))
