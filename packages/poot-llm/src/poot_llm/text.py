"""The text side of generation, usable without an engine: what a server runs in its own process."""

from poot_llm._detokenizer import Detokenizer, decode_all
from poot_llm._stop import StopMatcher
from poot_llm._template import ChatTemplate, TemplateLimits
from poot_llm._text_stream import TextStream
from poot_llm._token_bytes import TokenTable
from poot_llm._tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatcher",
    "TemplateLimits",
    "TextStream",
    "TokenTable",
    "Tokenizer",
    "decode_all",
]
