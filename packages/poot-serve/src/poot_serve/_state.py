"""What every handler needs: the engine, the tokenizer and the names of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import Any

from poot_core import RequestError
from poot_llm.text import Tokenizer
from poot_serve._engine_process import EngineProcess

__all__ = ["ServerState"]

_MOST_CHARACTERS_A_TOKEN = (
    256  # far above any text's average: the longest tokens are runs of spaces
)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Shared state of the server.

    Attributes:
        engine: The engine process.
        tokenizer: Of the model, or None.
        model_name: Name that the API reports.
        served_names: Names that requests may use; empty accepts any.
        sampling_defaults: The checkpoint's own defaults.
        created: Start of the server, seconds since 1970.
    """

    engine: EngineProcess
    tokenizer: Tokenizer | None
    model_name: str
    served_names: tuple[str, ...] = ()
    sampling_defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    created: int = field(default_factory=lambda: int(time()))

    def check_model(self, name: str | None) -> str:
        """Return the name to report.

        Raises:
            RequestError: With status 404 if only certain names are served and this is none of them.
        """
        if not self.served_names:
            return self.model_name
        if name is None or name in self.served_names:
            return name or self.served_names[0]
        known = ", ".join(self.served_names)
        raise RequestError(
            f"there is no model {name!r}; served: {known}", status=404, field="model"
        )

    def check_text_length(self, characters: int) -> None:
        """Refuse text that cannot fit, before the time to tokenize it is spent.

        Raises:
            RequestError: If the context cannot hold so many characters.
        """
        ready = self.engine.state.ready
        if ready is None or characters <= ready.context_tokens * _MOST_CHARACTERS_A_TOKEN:
            return
        error = RequestError(
            f"the prompt has {characters} characters and the context holds {ready.context_tokens} "
            "tokens; shorten the prompt or start the server with a larger context",
            field="prompt",
        )
        error.code = "context_length_exceeded"
        raise error

    def require_tokenizer(self, field_name: str) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            RequestError: If the model has none, so that it takes and gives ids alone.
        """
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer files: send token ids to /v1/completions",
                field=field_name,
            )
        return self.tokenizer
