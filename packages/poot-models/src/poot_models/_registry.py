"""Which family reads which checkpoints: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from poot_core import UnsupportedError
from poot_graph_ir import Tracer
from poot_models._decoder import Decoder
from poot_models.components.step import Step
from poot_models.components.tables import WeightTable
from poot_models.families import (
    bloom,
    cohere2,
    ernie4_5,
    exaone4,
    gemma2,
    gemma3,
    glm4,
    gpt2,
    gpt_neox,
    granite,
    hunyuan_dense,
    llama,
    mistral,
    mpt,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
    smollm3,
    starcoder2,
)

__all__ = ["FAMILIES", "Family", "FamilyConfig", "find_family", "supported_architectures"]


class FamilyConfig(Protocol):
    """What every family's configuration has."""

    @property
    def decoder(self) -> Decoder:
        """Sizes and choices."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer the tokens that a token sees, itself included, or None for all."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        name: Its name in messages and cache keys.
        model_types: Values of ``model_type`` that it reads.
        read_config: Returns its configuration of a Hugging Face dictionary.
        weights: Returns the shape of every tensor by name.
        trace: Returns the logits of one step.
        prefix: What the names of the body's tensors begin with.
        other_prefixes: What a checkpoint may have instead of it, such as nothing.
        ignored_weights: Beginnings of names of tensors that are no part of the text model.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], Any]
    weights: Callable[[Any], WeightTable]
    trace: Callable[[Step, Any], Tracer]
    prefix: str = "model."
    other_prefixes: tuple[str, ...] = ("",)
    ignored_weights: tuple[str, ...] = ()


# Names of a multimodal checkpoint's other towers.
_VISION = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)

# fmt: off
FAMILIES: tuple[Family, ...] = (
    Family("bloom", ("bloom",), bloom.BloomConfig.from_config, bloom.weights, bloom.trace,
           prefix="transformer."),
    Family("cohere2", ("cohere2",), cohere2.Cohere2Config.from_config, cohere2.weights,
           cohere2.trace),
    Family("ernie4_5", ("ernie4_5",), ernie4_5.Ernie45Config.from_config, ernie4_5.weights,
           ernie4_5.trace),
    Family("exaone4", ("exaone4",), exaone4.Exaone4Config.from_config, exaone4.weights,
           exaone4.trace),
    Family("gemma2", ("gemma2",), gemma2.Gemma2Config.from_config, gemma2.weights, gemma2.trace),
    Family("gemma3", ("gemma3_text", "gemma3"), gemma3.Gemma3Config.from_config, gemma3.weights,
           gemma3.trace, other_prefixes=("language_model.model.", "model.language_model.", ""),
           ignored_weights=_VISION),
    Family("glm4", ("glm4",), glm4.Glm4Config.from_config, glm4.weights, glm4.trace),
    Family("gpt2", ("gpt2",), gpt2.GPT2Config.from_config, gpt2.weights, gpt2.trace,
           prefix="transformer."),
    Family("gpt_neox", ("gpt_neox",), gpt_neox.GPTNeoXConfig.from_config, gpt_neox.weights,
           gpt_neox.trace, prefix="gpt_neox."),
    Family("granite", ("granite",), granite.GraniteConfig.from_config, granite.weights,
           granite.trace),
    Family("hunyuan_dense", ("hunyuan_v1_dense",), hunyuan_dense.HunyuanConfig.from_config,
           hunyuan_dense.weights, hunyuan_dense.trace),
    Family("llama", ("llama",), llama.LlamaConfig.from_config, llama.weights, llama.trace),
    Family("mistral", ("mistral",), mistral.MistralConfig.from_config, mistral.weights,
           mistral.trace),
    Family("mpt", ("mpt",), mpt.MptConfig.from_config, mpt.weights, mpt.trace,
           prefix="transformer."),
    Family("olmo2", ("olmo2",), olmo2.OlmoConfig.from_config, olmo2.weights, olmo2.trace),
    Family("olmo3", ("olmo3",), olmo2.OlmoConfig.from_olmo3_config, olmo2.weights, olmo2.trace),
    Family("phi3", ("phi3",), phi3.Phi3Config.from_config, phi3.weights, phi3.trace),
    Family("qwen2", ("qwen2",), qwen2.Qwen2Config.from_config, qwen2.weights, qwen2.trace),
    Family("qwen3", ("qwen3",), qwen3.Qwen3Config.from_config, qwen3.weights, qwen3.trace),
    Family("seed_oss", ("seed_oss",), seed_oss.SeedOssConfig.from_config, seed_oss.weights,
           seed_oss.trace),
    Family("smollm3", ("smollm3",), smollm3.SmolLM3Config.from_config, smollm3.weights,
           smollm3.trace),
    Family("starcoder2", ("starcoder2",), starcoder2.Starcoder2Config.from_config,
           starcoder2.weights, starcoder2.trace),
)
# fmt: on
"""All families, by name."""

_BY_MODEL_TYPE = {kind: family for family in FAMILIES for kind in family.model_types}


def supported_architectures() -> tuple[str, ...]:
    """Return every ``model_type`` that a family reads, sorted."""
    return tuple(sorted(_BY_MODEL_TYPE))


def find_family(architecture: str) -> Family:
    """Return the family that reads checkpoints of a ``model_type``.

    Raises:
        UnsupportedError: If there is none; names the known ones.
    """
    found = _BY_MODEL_TYPE.get(architecture)
    if found is None:
        raise UnsupportedError(
            f"poot has no model family for architecture {architecture!r}; "
            f"known are {', '.join(supported_architectures())}",
            architecture=architecture,
        )
    return found
