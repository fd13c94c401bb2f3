"""Generate text with a model: ``uv run python examples/generate.py MODEL [PROMPT]``."""

from __future__ import annotations

import sys

from poot_llm import LLM, SamplingParams


def main() -> None:
    """Print what the model says, as it says it."""
    model = sys.argv[1]
    prompt = sys.argv[2] if len(sys.argv) > 2 else "The capital of France is"
    with LLM(model) as llm:
        for delta in llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=32)):
            print(delta.text or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
