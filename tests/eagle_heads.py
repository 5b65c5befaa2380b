"""Builders of random EAGLE and EAGLE-3 heads, and what they draft, computed plainly in float64."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, INNER = 4, 2, 16, 96
THETA, EPS = 10_000.0, 1e-5


@dataclass
class Head:
    """A random head for a target, written into a folder as `form` publishes it."""

    folder: Path
    target: Path
    form: str = "eagle3"
    """eagle, eagle-nested, eagle3 or speculators."""
    draft_vocab_size: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further keys of config.json."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """By EAGLE-3's own names, in float32."""

    def __post_init__(self) -> None:
        config = json.loads((self.target / "config.json").read_text())
        self.size, self.vocab_size = config["hidden_size"], config["vocab_size"]
        self.num_layers = config["num_hidden_layers"]
        self.tapped = tuple(
            self.options.get(
                "eagle_aux_hidden_state_layer_ids", (2, self.num_layers // 2, self.num_layers - 3)
            )
        )
        self.is_third = not self.form.startswith("eagle") or self.form == "eagle3"
        self._make_tensors()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.json").write_text(json.dumps(self._config()))
        save_file(self._published(), self.folder / "model.safetensors")

    def _make_tensors(self) -> None:
        generator = torch.Generator().manual_seed(5)

        def random(*shape: int, scale: float = 0.2) -> Tensor:
            return torch.randn(shape, generator=generator) * scale

        size, wide = self.size, 2 * self.size if self.is_third else self.size
        for name, num_rows in (
            ("q", NUM_HEADS * HEAD_DIM),
            ("k", NUM_KV_HEADS * HEAD_DIM),
            ("v", NUM_KV_HEADS * HEAD_DIM),
        ):
            self.tensors[f"midlayer.self_attn.{name}_proj.weight"] = random(num_rows, wide)
        self.tensors |= {
            "midlayer.self_attn.o_proj.weight": random(size, NUM_HEADS * HEAD_DIM),
            "midlayer.mlp.gate_proj.weight": random(INNER, size),
            "midlayer.mlp.up_proj.weight": random(INNER, size),
            "midlayer.mlp.down_proj.weight": random(size, INNER),
            "midlayer.post_attention_layernorm.weight": 1 + random(size),
            "fc.weight": random(size, len(self.tapped) * size if self.is_third else 2 * size),
        }
        if self.is_third:
            num_tokens = self.draft_vocab_size or self.vocab_size
            self.tensors |= {
                "midlayer.input_layernorm.weight": 1 + random(size),
                "midlayer.hidden_norm.weight": 1 + random(size),
                "norm.weight": 1 + random(size),
                "lm_head.weight": random(num_tokens, size),
            }
            if self.draft_vocab_size is not None:
                chosen = torch.randperm(self.vocab_size, generator=generator)[:num_tokens].sort().values
                self.tensors["d2t"] = chosen - torch.arange(num_tokens)
                self.tensors["t2d"] = torch.isin(torch.arange(self.vocab_size), chosen)
        if self.options.get("norm_before_fc"):
            self.tensors["input_norm.weight"] = 1 + random(len(self.tapped) * size)
        if self.options.get("fc_norm"):
            for place in range(len(self.tapped)):
                self.tensors[f"fc_norm.{place}.weight"] = 1 + random(size)

    def _config(self) -> dict[str, Any]:
        layer = {
            "model_type": "llama",
            "hidden_size": self.size,
            "intermediate_size": INNER,
            "num_attention_heads": NUM_HEADS,
            "num_key_value_heads": NUM_KV_HEADS,
            "head_dim": HEAD_DIM,
            "num_hidden_layers": 1,
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "max_position_embeddings": 256,
            "vocab_size": self.vocab_size,
            "hidden_act": "silu",
        }
        own: dict[str, Any] = dict(self.options)
        if self.draft_vocab_size is not None:
            own["draft_vocab_size"] = self.draft_vocab_size
        if self.form == "speculators":
            return {
                "architectures": ["Eagle3Speculator"],
                "speculators_model_type": "eagle3",
                "transformer_layer_config": layer,
                **own,
            }
        if self.form == "eagle-nested":
            whole = {"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"}
            return {**whole, "model": {**layer, "architectures": ["LlamaForCausalLM"]}, **own}
        architecture = "LlamaForCausalLMEagle3" if self.is_third else "LlamaForCausalLM"
        return {**layer, "architectures": [architecture], **own}

    def _published(self) -> dict[str, Tensor]:
        if self.form == "eagle3":
            return self.tensors
        return {name.replace("midlayer.", "layers.0."): one for name, one in self.tensors.items()}

    def states(self, token_ids: tuple[int, ...]) -> Tensor:
        """Return the target's states of a text, `[num_tokens, num_places * hidden_size]`."""
        model = AutoModelForCausalLM.from_pretrained(self.target, dtype=torch.float64)
        with torch.inference_mode():
            hidden = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
        if not self.is_third:
            return hidden[-1][0]
        return torch.cat([hidden[layer][0] for layer in self.tapped], dim=-1)

    def draft(self, token_ids: tuple[int, ...], num_tokens: int, start: int = 0) -> tuple[int, ...]:
        """Return the likeliest tokens behind a text, whose states are known from `start` on.

        The last token's state is not known: its own step is the next one.
        """
        weights = {
            name: one.double() if one.is_floating_point() else one for name, one in self.tensors.items()
        }
        model = AutoModelForCausalLM.from_pretrained(self.target, dtype=torch.float64)
        embedding = model.get_input_embeddings().weight.detach()
        states = self._combined(self.states(token_ids[:-1])[start:], weights)
        text, drafted = list(token_ids), []
        for _ in range(num_tokens):
            behind = torch.tensor(text[start + 1 :])
            last = self._layer(embedding[behind], states, weights)[-1:]
            logits = self._logits(last, weights, model)
            token = int(logits.argmax())
            normed = _norm(last, weights["norm.weight"]) if self.options.get("norm_output") else last
            states = torch.cat((states, normed))
            text.append(token)
            drafted.append(token)
        return tuple(drafted)

    def _combined(self, states: Tensor, weights: dict[str, Tensor]) -> Tensor:
        if not self.is_third:
            return states
        if "input_norm.weight" in weights:
            states = _norm(states, weights["input_norm.weight"])
        if "fc_norm.0.weight" in weights:
            parts = states.chunk(len(self.tapped), dim=-1)
            normed = [_norm(one, weights[f"fc_norm.{place}.weight"]) for place, one in enumerate(parts)]
            states = torch.cat(normed, dim=-1)
        return states @ weights["fc.weight"].T

    def _layer(self, embedded: Tensor, states: Tensor, weights: dict[str, Tensor]) -> Tensor:
        own = {name.removeprefix("midlayer."): one for name, one in weights.items()}
        if self.is_third:
            normed = _norm(states, own["hidden_norm.weight"])
            hidden = normed if self.options.get("norm_before_residual") else states
            given = torch.cat((_norm(embedded, own["input_layernorm.weight"]), normed), dim=-1)
        else:
            given = hidden = torch.cat((embedded, states), dim=-1) @ own["fc.weight"].T
        q, k, v = (
            (given @ own[f"self_attn.{name}_proj.weight"].T).view(len(given), -1, HEAD_DIM).transpose(0, 1)
            for name in "qkv"
        )
        q, k = _rotated(q), _rotated(k)
        k, v = (one.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=0) for one in (k, v))
        scores = q @ k.transpose(1, 2) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(len(given), len(given)).triu(1).bool(), float("-inf"))
        attended = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        hidden = hidden + attended @ own["self_attn.o_proj.weight"].T
        normed = _norm(hidden, own["post_attention_layernorm.weight"])
        inner = silu(normed @ own["mlp.gate_proj.weight"].T) * (normed @ own["mlp.up_proj.weight"].T)
        return hidden + inner @ own["mlp.down_proj.weight"].T

    def _logits(self, hidden: Tensor, weights: dict[str, Tensor], model: Any) -> Tensor:
        if not self.is_third:
            logits: Tensor = model.get_output_embeddings()(hidden)[0]
            return logits
        own = (_norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T)[0]
        if "d2t" not in weights:
            return own
        whole = torch.full((self.vocab_size,), float("-inf"), dtype=own.dtype)
        whole[weights["d2t"] + torch.arange(len(own))] = own
        return whole


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * (hidden.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _rotated(heads: Tensor) -> Tensor:
    """Rotate `[num_heads, num_tokens, head_dim]` by their positions."""
    inverse = THETA ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angles = torch.arange(heads.shape[1], dtype=torch.float64)[:, None] * inverse
    cos, sin = (torch.cat((one, one), dim=-1) for one in (angles.cos(), angles.sin()))
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
