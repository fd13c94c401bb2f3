"""Fields and objects that several endpoints share.

Requests are read leniently: a field that is absent and one that is null mean the same, and unknown
fields pass. What is given has to have its type and lie in its range.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "ErrorBody",
    "ErrorObject",
    "Filled",
    "FunctionSpec",
    "JsonSchemaFormat",
    "ModelList",
    "ModelObject",
    "PromptTokensDetails",
    "ResponseFormat",
    "SamplingFields",
    "StreamOptions",
    "StructuredOutputs",
    "Tool",
    "Usage",
]

Filled = Annotated[str, Meta(min_length=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MOST_CHOICES = 128
MOST_STOPS = 64


class StreamOptions(Struct, frozen=True, kw_only=True):
    """``stream_options``: what a stream says beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """One of several shapes that the answer must have."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, kw_only=True):
    """The ``json_schema`` of a response format."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True, kw_only=True):
    """``response_format`` of the OpenAI dialect."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class SamplingFields(Struct, frozen=True, kw_only=True):
    """How tokens are chosen and when the answer ends."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    dry_range: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    dry_sequence_breakers: Annotated[list[Filled], Meta(max_length=64)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[Filled], Meta(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    user: str | None = None


class FunctionSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, kw_only=True):
    """One entry of ``tools``."""

    function: FunctionSpec
    type: Literal["function"] = "function"


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the prompt that cost nothing."""

    cached_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    """Tokens of the answer that nobody reads as the answer."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET

    @classmethod
    def of(
        cls, prompt: int, completion: int, *, cached: int = 0, reasoning: int | None = None
    ) -> Usage:
        """Return the usage of a request."""
        details = (
            UNSET if reasoning is None else CompletionTokensDetails(reasoning_tokens=reasoning)
        )
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=details,
        )


class ErrorObject(Struct, frozen=True, kw_only=True):
    """Why a request failed: ``param`` names the field, ``code`` is a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every answer that reports an error."""

    error: ErrorObject


class ModelObject(Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    created: int
    max_model_len: int | None
    object: Literal["model"] = "model"
    owned_by: str = "poot"


class ModelList(Struct, frozen=True, kw_only=True):
    """All models served."""

    data: list[ModelObject]
    object: Literal["list"] = "list"
