"""Chat templates: a checkpoint's own Jinja source turned into text, in a sandbox with limits.

Dialect: that of Hugging Face transformers (immutable sandbox, ``trim_blocks``, ``lstrip_blocks``, loop
controls, ``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``, ``{% generation %}``).
Limits: every loop step, addition, product and concatenation is metered, so that a hostile or broken
template costs a bounded time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from poot_core import RequestError

__all__ = ["ChatTemplate", "TemplateLimits"]


class TemplateLimits:
    """Bounds of one rendering.

    Args:
        output_characters: Longest text, intermediate ones included.
        seconds: Longest time.
    """

    def __init__(self, *, output_characters: int = 4_000_000, seconds: float = 5.0) -> None:
        self.output_characters = output_characters
        self.seconds = seconds


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source.
        special_tokens: Names such as ``bos_token`` with their texts, as the template sees them.
        limits: Bounds of one rendering.
        now: The time that ``strftime_now`` gives; None takes the clock.

    Raises:
        RequestError: If the source is no template.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hello"}])
    '<user>Hello'
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        limits: TemplateLimits | None = None,
        now: datetime | None = None,
    ) -> None:
        # Jinja takes 50 ms to import, which a command that renders no template does not pay.
        from poot_llm._template_sandbox import Sandbox

        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._sandbox = Sandbox(limits or TemplateLimits(), now)
        self._template = self._sandbox.compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation; it holds its own BOS where the template writes one.

        Args:
            messages: Each with ``role`` and ``content`` at least.
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: End with the head of the assistant's answer.
            variables: Further names that the template may read.

        Raises:
            RequestError: If the messages are malformed, the template refuses them, fails, or leaves
                its limits.
        """
        _check_messages(messages)
        names = {
            **self._special_tokens,
            **(variables or {}),
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._sandbox.render(self._template, names)


def _check_messages(messages: Any) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages is {type(messages).__name__}; it must be a list of objects with role and "
            "content",
            field="messages",
        )
    if not messages:
        raise RequestError("messages is empty; give at least one", field="messages")
    for place, message in enumerate(messages):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):  # pyright: ignore[reportUnknownMemberType]
            raise RequestError(
                f"messages[{place}] is no object with a role; write "
                '{"role": "user", "content": "..."}',
                field=f"messages[{place}]",
            )
