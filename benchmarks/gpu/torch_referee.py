"""The referee: a decode step of the same dimensions in plain torch, replayed as a CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["decode_seconds"]


def decode_seconds(config: dict[str, Any], rows: int, context: int) -> float:
    """Return median seconds of a step: whole model, greedy token, keys and values of a context."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    wide, vocab = config["intermediate_size"], config["vocab_size"]

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

    embed = weight(vocab, hidden)
    head = embed if config["tie_word_embeddings"] else weight(vocab, hidden)
    parts = [
        {
            "qkv": weight((heads + 2 * kv_heads) * dim, hidden), "o": weight(hidden, heads * dim),
            "up": weight(2 * wide, hidden), "down": weight(hidden, wide),
            "k": weight(rows, kv_heads, context, dim), "v": weight(rows, kv_heads, context, dim),
            "norms": (1 + weight(hidden), 1 + weight(hidden)),
        }
        for _ in range(layers)
    ]  # fmt: skip
    ids = torch.zeros(rows, dtype=torch.long, device="cuda")
    cosine, sine = weight(1, 1, dim), weight(1, 1, dim)

    def turned(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * cosine + torch.cat((-high, low), -1) * sine

    def step() -> None:
        x = functional.embedding(ids, embed)
        for part in parts:
            y = functional.rms_norm(x, (hidden,), part["norms"][0], 1e-5)
            qkv = functional.linear(y, part["qkv"]).view(rows, -1, dim)
            q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
            part["k"][:, :, -1], part["v"][:, :, -1] = turned(k), v
            found = functional.scaled_dot_product_attention(
                turned(q)[:, :, None], part["k"], part["v"], enable_gqa=True
            )
            x = x + functional.linear(found.reshape(rows, -1), part["o"])
            y = functional.rms_norm(x, (hidden,), part["norms"][1], 1e-5)
            gate, up = functional.linear(y, part["up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, part["down"])
        y = functional.rms_norm(x, (hidden,), None, 1e-5)
        ids.copy_(functional.linear(y, head).argmax(-1))

    with torch.no_grad():
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        times = []
        for _ in range(25):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return sorted(times)[12] / 1e3
