"""A checkpoint's tokenizer: text to ids by its own rules, ids to text, and its chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from poot_core import RequestError, UnsupportedError
from poot_llm._detokenizer import (
    BytesDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    decode_all,
)
from poot_llm._token_bytes import DataBytes, TokenBytes, TokenTable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from poot_llm._template import ChatTemplate
    from poot_load import TokenizerData

__all__ = ["Tokenizer"]


class Tokenizer:
    """Text to ids and back.

    Args:
        source: A checkpoint's tokenizer data, or a bare ``tokenizers.Tokenizer``, whose post-processor
            then holds the BOS rule.
        special_tokens: Texts of ``bos_token``, ``eos_token`` and the like, for chat templates.
        chat_template: Jinja source, or None where the checkpoint has none.
        is_spelled: Whether the source's ``token_bytes`` is to be used, which needs no tokenizer built;
            otherwise the tokenizer's own decoder says what its tokens stand for.
    """

    def __init__(
        self,
        source: TokenizerData | Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        is_spelled: bool = False,
    ) -> None:
        self._source = source
        self._is_spelled = is_spelled
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template

    @property
    def backend(self) -> Backend:
        """The whole tokenizer; built or loaded when first asked for."""
        return getattr(self._source, "tokenizer", self._source)  # pyright: ignore[reportReturnType]

    @property
    def vocab_size(self) -> int:
        """Number of ids; a model's logits may be wider."""
        found = getattr(self._source, "vocab_size", None)
        return self.backend.get_vocab_size() if found is None else found

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that the vocabulary marks as ends; none are known of a bare tokenizer."""
        return getattr(self._source, "eos_ids", ())

    @cached_property
    def table(self) -> TokenTable | None:
        """Bytes of tokens, where the decoder works token by token."""
        if self._is_spelled:
            return DataBytes(cast("TokenizerData", self._source))
        return TokenBytes.of(self.backend)

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: Any text; names of special tokens in it become those tokens.
            adds_special: Add BOS and the like where the tokenizer's own rule does.

        Raises:
            RequestError: If the text holds half a surrogate pair, which UTF-8 cannot.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: {error.reason} at character {error.start}",
                field="prompt",
            ) from error
        encoded = self._source.encode(text, add_special_tokens=adds_special)
        return encoded if isinstance(encoded, list) else encoded.ids

    def decode(
        self, token_ids: Iterable[int], *, skips_special: bool = True, continues: bool = False
    ) -> str:
        """Return the text of ids; what ``detokenizer`` streams is the same in all."""
        detokenizer = self.detokenizer(skips_special=skips_special, continues=continues)
        return decode_all(detokenizer, token_ids)

    def detokenizer(self, *, skips_special: bool = True, continues: bool = False) -> Detokenizer:
        """Return a streaming detokenizer for one sequence.

        Args:
            skips_special: Leave control tokens out.
            continues: The text goes on from a prompt, so a first space is kept.
        """
        if self.table is None:
            return WindowDetokenizer(self.backend, skips_special=skips_special)
        return BytesDetokenizer(self.table, skips_special=skips_special, continues=continues)

    @cached_property
    def template(self) -> ChatTemplate:
        """The compiled chat template.

        Raises:
            UnsupportedError: If the checkpoint has none.
        """
        if self.chat_template is None:
            raise UnsupportedError(
                "this checkpoint has no chat template, so there is no telling how it wants a "
                "conversation written (a base model knows none); give it plain text instead"
            )
        from poot_llm._template import ChatTemplate

        return ChatTemplate(self.chat_template, special_tokens=self.special_tokens)

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation; BOS is there only if the template writes it.

        Raises:
            UnsupportedError: If the checkpoint has no chat template.
            RequestError: If the template does not render the messages.
        """
        text = self.template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        return self.encode(text, adds_special=False)
