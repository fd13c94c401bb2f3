"""How far precision ``auto`` is from f32: KL divergence over the answers to everyday questions.

    python benchmarks/accuracy.py MODEL [--raw] [--threads 2]

Prints, in nats, KL(f32 || auto) at the last prompt position and over the first tokens of the answers
that f32 gives greedily, and how often the most likely token differs. ``--raw`` asks without the chat
template, as base models need it.
"""

from __future__ import annotations

import argparse

import numpy as np

from poot_llm import LLM, SamplingParams

ANSWER_TOKENS = 12
CONTEXT = 512
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about autumn.",
    "Explain photosynthesis to a child.",
    "How do I reverse a list in Python?",
    "Who wrote Romeo and Juliet?",
    "What is 17 times 23?",
    "Translate 'good morning' into Spanish.",
    "List three healthy breakfast ideas.",
    "Why is the sky blue?",
    "Summarize the plot of Cinderella in two sentences.",
    "Give me a name for a cat.",
    "What is the boiling point of water?",
    "Write a short story about a dragon.",
    "How far is the moon?",
    "What does HTTP stand for?",
    "Tell me a joke.",
    "Name the planets of the solar system.",
    "How do I bake bread?",
    "What is machine learning?",
    "Is a tomato a fruit or a vegetable?",
    "Write a SQL query that counts users by country.",
    "What is the meaning of life?",
    "How many continents are there?",
    "What are the benefits of exercise?",
    "Compose an email asking for a day off.",
    "Define entropy.",
    "What is the largest ocean on Earth?",
    "Convert 100 Fahrenheit to Celsius.",
    "Who painted the Mona Lisa?",
    "Give me advice on saving money.",
    "What year did World War II end?",
    "Describe the taste of an orange.",
    "Write a function in JavaScript that adds two numbers.",
    "What is a prime number?",
    "Hello!",
    "How are you today?",
    "What's the fastest land animal?",
    "Explain recursion.",
    "Suggest a book for a teenager.",
    "What is the chemical symbol for gold?",
)


def answers(llm: LLM, is_raw: bool) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each prompt and of the start of its answer."""
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0)
    if is_raw:
        outputs = llm.generate(list(QUESTIONS), params)
    else:
        outputs = [llm.chat([{"role": "user", "content": q}], params) for q in QUESTIONS]
    return [(list(found.prompt_ids), list(found.output_ids)) for found in outputs]


def log_probabilities(llm: LLM, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Return (1 + answer, vocabulary) log probabilities from the prompt's end on."""
    logits = llm.logits(prompt + answer)[len(prompt) - 1 :].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    options = {"threads": arguments.threads, "context": CONTEXT}
    with LLM(arguments.model, precision="f32", **options) as llm:
        cases = answers(llm, arguments.raw)
        wanted = [log_probabilities(llm, *case) for case in cases]
    with LLM(arguments.model, precision="auto", **options) as llm:
        found = [log_probabilities(llm, *case) for case in cases]
    pairs = list(zip(wanted, found, strict=True))
    divergence = [(np.exp(p) * (p - q)).sum(axis=-1) for p, q in pairs]
    last, every = np.array([d[0] for d in divergence]), np.concatenate(divergence)
    first = sum(int(p[0].argmax() != q[0].argmax()) for p, q in pairs)
    changed = sum(int((p.argmax(-1) != q.argmax(-1)).sum()) for p, q in pairs)
    print(
        f"prompt end: mean {last.mean():.1e}, median {np.median(last):.1e}, "
        f"p90 {np.quantile(last, 0.9):.1e}, max {last.max():.1e}, over 2e-3 {(last > 2e-3).sum()}, "
        f"other token {first} of {len(last)}"
    )
    print(
        f"answers: mean {every.mean():.1e}, p90 {np.quantile(every, 0.9):.1e}, "
        f"other token {changed} of {len(every)}"
    )


if __name__ == "__main__":
    main()
