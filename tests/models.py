"""Builders of small random-weight model folders, and what Transformers computes with them.

Everything is local and seeded: a folder holds config.json, safetensors and a byte-level tokenizer, as a
downloaded model does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

FAMILIES: Final[dict[str, tuple[type, type]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen2-moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "gpt-oss": (GptOssConfig, GptOssForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "opt": (OPTConfig, OPTForCausalLM),
    "gpt-neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "cohere": (CohereConfig, CohereForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM),
}
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID: Final = 2
WIDTHS: Final = {
    "wpe.weight": 4.0,
    "attn.c_attn.weight": 4.5,
    "attn.c_proj.weight": 2.0,
    "mlp.c_proj.weight": 0.5,
    "embed_positions.weight": 4.0,
    "q_proj.weight": 3.0,
    "k_proj.weight": 3.0,
    "v_proj.weight": 2.0,
    "out_proj.weight": 2.0,
    "fc2.weight": 0.5,
    "query_key_value.weight": 3.0,
    "attention.dense.weight": 2.0,
    "dense_4h_to_h.weight": 0.5,
}
"""Factors on what GPT-2, OPT and GPT-NeoX are drawn with: with 1.0 they continue every prompt alike."""
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One small model; `extra` holds further keys of its Transformers configuration."""

    family: str = "llama"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    max_position_embeddings: int = 512
    is_tied: bool = False
    is_sharded: bool = False
    extra: tuple[tuple[str, Any], ...] = ()


LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE: Final = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
GEMMA3_ROPE: Final = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LONGROPE: Final = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.5, 1.8, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
    "attention_factor": 1.2,
}
"""Rotates 12 dimensions of 16."""
DYNAMIC_ROPE: Final = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
VARIANTS: Final[dict[str, ModelSpec]] = {
    "llama": ModelSpec(),
    "llama-mha-tied": ModelSpec(num_kv_heads=4, is_tied=True),
    "llama-mqa-wide-heads": ModelSpec(num_kv_heads=1, head_dim=32),
    "llama-biased": ModelSpec(extra=(("attention_bias", True), ("mlp_bias", True))),
    "llama3-rope": ModelSpec(extra=(("rope_parameters", LLAMA3_ROPE),)),
    "llama-linear-rope": ModelSpec(
        extra=(("rope_parameters", {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}),)
    ),
    "llama-yarn-rope": ModelSpec(extra=(("rope_parameters", YARN_ROPE),)),
    "qwen2": ModelSpec(family="qwen2", is_tied=True),
    "qwen2-mixed-windows": ModelSpec(
        family="qwen2",
        num_layers=3,
        extra=(("use_sliding_window", True), ("sliding_window", 9), ("max_window_layers", 1)),
    ),
    "qwen3": ModelSpec(family="qwen3", head_dim=24, hidden_size=96),
    "mistral": ModelSpec(family="mistral", extra=(("sliding_window", None),)),
    "mistral-window": ModelSpec(family="mistral", extra=(("sliding_window", 7),)),
    "gemma2": ModelSpec(
        family="gemma2",
        num_layers=3,
        extra=(
            ("sliding_window", 9),
            ("query_pre_attn_scalar", 24),
            ("attn_logit_softcapping", 2.0),
            ("final_logit_softcapping", 8.0),
        ),
    ),
    "gemma3": ModelSpec(
        family="gemma3",
        num_layers=3,
        is_tied=True,
        extra=(
            ("sliding_window", 9),
            ("sliding_window_pattern", 3),
            ("query_pre_attn_scalar", 24),
            ("rope_parameters", GEMMA3_ROPE),
        ),
    ),
    "phi3-longrope": ModelSpec(
        family="phi3",
        extra=(("sliding_window", 9), ("rope_parameters", LONGROPE), ("original_max_position_embeddings", 1)),
    ),
    "mixtral": ModelSpec(family="mixtral", extra=(("num_local_experts", 5), ("num_experts_per_tok", 2))),
    "qwen2-moe": ModelSpec(
        family="qwen2-moe",
        num_layers=3,
        extra=(
            ("num_experts", 6),
            ("num_experts_per_tok", 3),
            ("moe_intermediate_size", 32),
            ("shared_expert_intermediate_size", 48),
            ("mlp_only_layers", [1]),
        ),
    ),
    "qwen3-moe": ModelSpec(
        family="qwen3-moe",
        extra=(
            ("num_experts", 8),
            ("num_experts_per_tok", 3),
            ("moe_intermediate_size", 40),
            ("norm_topk_prob", True),
        ),
    ),
    "gpt-oss": ModelSpec(
        family="gpt-oss",
        num_layers=3,
        extra=(
            ("num_local_experts", 5),
            ("num_experts_per_tok", 2),
            ("swiglu_limit", 1.5),
            ("sliding_window", 9),
            ("rope_parameters", {**YARN_ROPE, "truncate": False}),
        ),
    ),
    "gpt2": ModelSpec(family="gpt2", is_tied=True, num_kv_heads=4, extra=(("n_inner", 96),)),
    "opt": ModelSpec(family="opt", is_tied=True, num_kv_heads=4, extra=(("ffn_dim", 96),)),
    "opt-post-norm": ModelSpec(
        family="opt",
        is_tied=True,
        num_kv_heads=4,
        extra=(("ffn_dim", 96), ("do_layer_norm_before", False), ("word_embed_proj_dim", 48)),
    ),
    "gpt-neox": ModelSpec(family="gpt-neox", num_kv_heads=4),
    "cohere": ModelSpec(family="cohere", is_tied=True, extra=(("logit_scale", 2.0),)),
    "granite": ModelSpec(
        family="granite",
        extra=(
            ("attention_multiplier", 0.3),
            ("embedding_multiplier", 2.0),
            ("logits_scaling", 3.0),
            ("residual_multiplier", 0.5),
        ),
    ),
    "starcoder2-window": ModelSpec(family="starcoder2", extra=(("sliding_window", 7),)),
}
"""The families and shapes that a native model has to reproduce. Prompts of 10 tokens exceed every window."""


def make_model(folder: Path, variant: str = "llama", **changes: Any) -> Path:
    """Write the variant with `changes` to its ModelSpec fields to `folder` and return the folder."""
    spec = replace(VARIANTS[variant], **changes)
    model = _random_model(spec)
    shard_size: int | str = 64 * 1024 if spec.is_sharded else "5GB"
    model.save_pretrained(folder, max_shard_size=shard_size)
    make_tokenizer(spec.vocab_size, spec.max_position_embeddings).save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: Any) -> Path:
    """Change values of a folder's config.json, whose weights stay; None takes a key away."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return folder


def make_tokenizer(vocab_size: int = 512, max_length: int = 512) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer without merges; ids past the bytes are unused words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL_TOKENS, *alphabet]
    words += [f"<|unused_{index}|>" for index in range(vocab_size - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _random_model(spec: ModelSpec) -> PreTrainedModel:
    config_class, model_class = FAMILIES[spec.family]
    config = config_class(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=spec.is_tied,
        bos_token_id=0,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=0,
        **dict(spec.extra),
    )
    model = model_class(config).to(spec.dtype).eval()
    randomise(model, spec.seed)
    return model


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> None:
    """Draw all weights so wide that each layer, bias and norm moves the logits by far more than rounding.

    Biases are centred on 0: larger ones would drown the context.
    """
    widths = WIDTHS if model.config.model_type in ("gpt2", "opt", "gpt_neox") else {}
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.rand(parameter.shape, generator=generator)
        if name.endswith(".bias"):
            parameter.copy_(drawn - 0.5)
        elif parameter.dim() == 1:
            parameter.copy_(drawn + 0.5)
        else:
            factor = next((widths[end] for end in widths if name.endswith(end)), 1.0)
            parameter.copy_((drawn - 0.5) * (4.0 * factor / parameter.shape[-1] ** 0.5))


def make_prompt(length: int, *, seed: int = 0, vocab_size: int = 512) -> list[int]:
    """Draw token ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL_TOKENS), vocab_size, (length,), generator=generator).tolist()


def reference_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


@torch.no_grad()
def reference_logits(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """Return Transformers' logits at every position, `[num_tokens, vocab_size]`."""
    return reference_model(folder)(torch.tensor([list(token_ids)])).logits[0]


@torch.no_grad()
def greedy_reference(folder: Path, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
    """Return Transformers' greedy continuation and the smallest gap between the two best logits on the way.

    Generation does not stop at the end token. Where the gap is below 1e-4, draw another prompt or seed:
    rounding may decide.
    """
    model = reference_model(folder)
    model.generation_config.eos_token_id = None
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top_two = torch.cat(output.logits).float().topk(2, dim=-1).values
    return output.sequences[0, len(prompt) :].tolist(), float((top_two[:, 0] - top_two[:, 1]).min())
