"""Trains an EAGLE-3 head that drafts for the bundled model, in the time given, and writes its folder.

It learns from the bundled model's own answers, as `train_draft.py` has them generated, with its own outputs
in the place of the model's hidden states for a few tokens, as they are when it drafts. It drafts the tokens
that these texts have most often. The folder has EAGLE-3's published names, configuration and weights alone.

Usage: python train_eagle.py --target ../../api/baton/bundled --out ../../bench/bundled_eagle3 --minutes 20
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from train import rate
from train_draft import LENGTH, batches, descend, make_parser, texts_of
from transformers import LlamaForCausalLM

TAPPED = (1, 3, 4)
"""Layers of the bundled model whose inputs the head reads."""
STEPS = 3
"""Tokens that are drafted behind each other in training."""
STEP_WEIGHT = 0.8
"""Weight of a drafted token's loss, in units of that of the one before."""


class Attention(nn.Module):
    """Grouped-query attention whose inputs are twice as wide as its outputs."""

    def __init__(self, size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = nn.Linear(2 * size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(2 * size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(2 * size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, size, bias=False)

    def heads(self, given: Tensor, first: int, theta: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, `[rows, num_heads, length, head_dim]`."""
        q, k, v = (
            layer(given).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        inverse = theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = (first + torch.arange(given.shape[1]))[:, None] * inverse
        cos, sin = (torch.cat((one, one), dim=-1) for one in (angles.cos(), angles.sin()))

        def rotated(x: Tensor) -> Tensor:
            low, high = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-high, low), dim=-1) * sin

        repeats = self.num_heads // self.num_kv_heads
        return rotated(q), rotated(k).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)


class Mlp(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, size: int, inner: int, eps: float, heads: tuple[int, int, int]) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm = nn.RMSNorm(size, eps), nn.RMSNorm(size, eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.self_attn = Attention(size, *heads)
        self.mlp = Mlp(size, inner)


class Head(nn.Module):
    """The head under EAGLE-3's names."""

    def __init__(self, target: LlamaForCausalLM, tokens: Tensor, inner: int) -> None:
        super().__init__()
        config = target.config
        size, eps = config.hidden_size, config.rms_norm_eps
        heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.theta = config.rope_parameters["rope_theta"]
        self.fc = nn.Linear(len(TAPPED) * size, size, bias=False)
        self.midlayer = Layer(size, inner, eps, heads)
        self.norm = nn.RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, len(tokens), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight[tokens])
        self.norm.weight.data.copy_(target.model.norm.weight)

    def forward(self, embedded: Tensor, states: Tensor) -> list[Tensor]:
        """Return logits `[rows, length, num_tokens]` of each of `STEPS` tokens drafted behind each other.

        Args:
            embedded: of the tokens behind the states, and further ones: `[rows, length + STEPS - 1, size]`.
            states: of the target, `[rows, length, len(TAPPED) * size]`.
        """
        layer, length = self.midlayer, states.shape[1]
        hidden, logits = self.fc(states), []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        causal = torch.ones(length, length).tril().bool()
        for step in range(STEPS):
            given = torch.cat(
                (
                    layer.input_layernorm(embedded[:, step : step + length]),
                    layer.hidden_norm(hidden),
                ),
                dim=-1,
            )
            q, k, v = layer.self_attn.heads(given, step, self.theta)
            keys.append(k)
            values.append(v)
            # A drafted token sees the true ones before its draft, and its own draft.
            own = torch.eye(length).bool()
            mask = torch.cat([causal, *[own] * step], dim=-1)
            attended = functional.scaled_dot_product_attention(
                q, torch.cat(keys, dim=2), torch.cat(values, dim=2), attn_mask=mask
            )
            hidden = hidden + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(-2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits


def most_frequent(texts: list[list[int]], number: int) -> Tensor:
    """Return the tokens that texts have most often, in order."""
    counts = Counter(token for text in texts for token in text)
    return torch.tensor(sorted(token for token, _ in counts.most_common(number)))


def train(
    head: Head, target: LlamaForCausalLM, texts: list[list[int]], tokens: Tensor, flags: argparse.Namespace
) -> int:
    """Run until the time is over; returns the steps."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.0)
    began, steps, shares = time.monotonic(), 0, [0.0] * STEPS
    length = LENGTH - STEPS
    for batch in batches(texts, random.Random(flags.seed)):
        share = (time.monotonic() - began) / (flags.minutes * 60)
        if share >= 1:
            break
        with torch.no_grad():
            told = target(input_ids=batch[:, :-1], use_cache=False, output_hidden_states=True)
            states = torch.cat([told.hidden_states[layer] for layer in TAPPED], dim=-1)[:, :length]
            wanted = told.logits.softmax(dim=-1)
            embedded = target.model.embed_tokens(batch[:, 1 : LENGTH + 1])
        loss = torch.zeros(())
        for step, logits in enumerate(head(embedded, states)):
            # What follows token t + 1 + step, which the head has been given.
            behind = wanted[:, step + 1 : step + 1 + length]
            loss = loss + STEP_WEIGHT**step * functional.cross_entropy(
                logits.flatten(0, 1), behind[..., tokens].flatten(0, 1)
            )
            right = (tokens[logits.argmax(-1)] == behind.argmax(-1)).float().mean().item()
            shares[step] = right if not steps else 0.95 * shares[step] + 0.05 * right
        descend(loss, head, optimizer, flags.lr * rate(share))
        steps += 1
        if steps % 50 == 0:
            alike = ", ".join(f"{one:.1%}" for one in shares)
            print(f"step {steps}: {share:.0%} of the time, loss {loss.item():.3f}, {alike} alike", flush=True)
    return steps


def write(head: Head, target: LlamaForCausalLM, tokens: Tensor, folder: Path) -> None:
    """Write the folder as EAGLE-3's are published."""
    config = target.config
    layer = head.midlayer
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": layer.mlp.gate_proj.out_features,
        "num_attention_heads": layer.self_attn.num_heads,
        "num_key_value_heads": layer.self_attn.num_kv_heads,
        "head_dim": layer.self_attn.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": head.theta,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": len(tokens),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPPED), "use_aux_hidden_state": True},
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    tensors = {name: one.detach().bfloat16().contiguous() for name, one in head.state_dict().items()}
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.isin(torch.arange(config.vocab_size), tokens)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    """Generate, train, write the folder."""
    parser = make_parser(__doc__, intermediate_size=256)
    parser.add_argument("--draft-tokens", type=int, default=1024, help="size of the head's vocabulary")
    flags = parser.parse_args()
    texts = texts_of(flags)
    torch.manual_seed(flags.seed)
    target = LlamaForCausalLM.from_pretrained(flags.target, dtype=torch.float32).eval()
    tokens = most_frequent(texts, flags.draft_tokens)
    head = Head(target, tokens, flags.intermediate_size).train()
    steps = train(head, target, texts, tokens, flags)
    write(head, target, tokens, flags.out)
    num_parameters = sum(one.numel() for one in head.parameters())
    print(f"{steps} steps on {sum(map(len, texts)):,} tokens, {num_parameters:,} parameters")


if __name__ == "__main__":
    main()
