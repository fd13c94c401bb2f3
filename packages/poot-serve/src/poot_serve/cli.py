"""The ``poot-serve`` command's entry point: cheap to import, and quiet when it is interrupted."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code: 1 for what went wrong, 2 for wrong usage."""
    # An interrupt during the imports just ends the process: Python would print a traceback.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from poot_serve._command import run

    signal.signal(signal.SIGINT, handler)
    return run(sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
