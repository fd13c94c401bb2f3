# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=4.55", "accelerate>=1.0", "gguf>=0.17"]
# ///
"""Prefill and decode of one model by transformers on torch, in f32: a referee beside the engines.

    uv run --script benchmarks/referee_torch.py MODEL [--prefill 512] [--decode 128] [--threads 2]

MODEL is a folder with safetensors or a GGUF file, which transformers dequantises. Prints one JSON
document of tokens a second. Nothing else of poot needs torch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    path: Path = arguments.model
    where = (
        {"pretrained_model_name_or_path": str(path)}
        if path.is_dir()
        else {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    )
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    vocabulary = model.config.get_text_config().vocab_size
    figures: dict[str, float] = {}
    with torch.inference_mode():
        prompt = torch.randint(vocabulary, (1, max(arguments.prefill, 1)))
        model(prompt[:, :8], use_cache=True, logits_to_keep=1)  # pages and threads settle
        if arguments.prefill:
            start = perf_counter()
            model(prompt, use_cache=True, logits_to_keep=1)
            figures["prefill_tok_s"] = arguments.prefill / (perf_counter() - start)
        if arguments.decode:
            token, cache = prompt[:, :1], None
            start = perf_counter()
            for _ in range(arguments.decode):
                out = model(token, past_key_values=cache, use_cache=True)
                cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
            figures["decode_tok_s"] = arguments.decode / (perf_counter() - start)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
