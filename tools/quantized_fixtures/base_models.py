"""Tiny random models that the producers quantize.

Every weight comes from one seed. The weights are wide enough that the layers, not the embeddings, decide the
next token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE: Final = 128
SEED: Final = 2024
ATTENTION: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def _seeded(build: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(SEED)
    return build().to(torch.bfloat16).eval()


def make_llama(intermediate_size: int = 256, **overrides: Any) -> PreTrainedModel:
    """Return a Llama in bf16 with one layer of hidden size 128 and the given intermediate size.

    Projections are [128, 128] (q, o), [64, 128] (k, v), [intermediate, 128] (gate, up) and [128,
    intermediate] (down). `overrides` are further settings of its configuration.
    """
    config = LlamaConfig(**{**ATTENTION, "intermediate_size": intermediate_size, **overrides})
    return _seeded(lambda: LlamaForCausalLM(config))


def make_biased_llama() -> PreTrainedModel:
    """Return a Llama in bf16 of odd sizes, with biases and a head of its own."""
    sizes = {"vocab_size": 131, "hidden_size": 160, "num_attention_heads": 5, "num_key_value_heads": 1}
    biases = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    model = make_llama(224, **sizes, **biases)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def make_qwen3_moe(**overrides: Any) -> PreTrainedModel:
    """Return a Qwen3-MoE in bf16 with one layer of four experts [128, 128], two for a token.

    `overrides` are further settings of its configuration.
    """
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    }
    config = Qwen3MoeConfig(**{**ATTENTION, **experts, "intermediate_size": 64, **overrides})
    return _seeded(lambda: Qwen3MoeForCausalLM(config))


def make_qwen2_moe() -> PreTrainedModel:
    """Return a Qwen2-MoE in bf16 with one layer of two experts [128, 128] and a shared one [64, 128]."""
    experts = {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 64,
    }
    config = Qwen2MoeConfig(**{**ATTENTION, **experts, "intermediate_size": 64})
    return _seeded(lambda: Qwen2MoeForCausalLM(config))


def make_mixtral() -> PreTrainedModel:
    """Return a Mixtral in bf16 with one layer of three experts [128, 128], two for a token."""
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 128}
    config = MixtralConfig(**{**ATTENTION, **experts, "sliding_window": None})
    return _seeded(lambda: MixtralForCausalLM(config))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single words, for producers that want one and use it for nothing."""
    names = [f"w{number}" for number in range(VOCAB_SIZE)]
    words = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token=names[0]))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=names[0], eos_token=names[1], unk_token=names[0]
    )


def calibration_ids(num_sequences: int, seq_len: int) -> torch.Tensor:
    """Return random token ids [num_sequences, seq_len] int64, the same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(3, VOCAB_SIZE, (num_sequences, seq_len), generator=generator)
