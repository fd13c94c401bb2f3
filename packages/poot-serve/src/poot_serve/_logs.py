"""Logs on stderr: lines for a person, or one JSON object a line for a machine."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from poot_serve._settings import LogSettings

__all__ = ["set_up_logs"]


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        body = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            body["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(body).decode("utf-8", "replace")


class _TextLines(logging.Formatter):
    """A message, and facts as words after it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        facts = getattr(record, "facts", {})
        # No value of a client's may begin a line of its own.
        words = [f"{name}={value!r}" for name, value in facts.items()]
        line = " ".join([record.getMessage(), *words])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(settings: LogSettings) -> None:
    """Send all logs of this process to stderr in the form that the settings name."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = settings.log_format == "json"
    handler.setFormatter(_JsonLines() if is_json else _TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if settings.debug else logging.INFO)
    for name, level in (
        ("asyncio", logging.WARNING),
        ("uvicorn", logging.WARNING),
        ("uvicorn.error", logging.WARNING),
        (
            "poot_serve.access",
            logging.INFO if is_json or settings.log_requests else logging.WARNING,
        ),
    ):
        logging.getLogger(name).setLevel(level)
