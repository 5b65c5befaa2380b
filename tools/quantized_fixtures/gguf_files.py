"""Fixtures of GGUF: written by the package gguf, those of types with two scales by llama.cpp.

Tensors are renamed and, for Llama, rows of Q and K reordered as llama.cpp's converter does. The reference is
Transformers' own import of the file, whose numbers gguf dequantizes in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from tools.quantized_fixtures.base_models import ATTENTION, SEED, make_llama, make_tokenizer
from tools.quantized_fixtures.fixture import greedy_tokens, produce, write_expected

PACKAGE: Final = "gguf"
Q: Final = gguf.GGMLQuantizationType
NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
make_wide_llama: Final = partial(
    make_llama,
    256,
    hidden_size=256,
    head_dim=64,
    num_attention_heads=4,
    num_key_value_heads=1,
)


def make_qwen2() -> PreTrainedModel:
    """Return a Qwen2 of the size of `make_llama`, with biases that are not zero."""
    torch.manual_seed(SEED)
    settings = {key: value for key, value in ATTENTION.items() if key != "head_dim"}
    model = Qwen2ForCausalLM(Qwen2Config(**settings, intermediate_size=256))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.to(torch.bfloat16).eval()


def _name(name: str) -> str:
    stem, _, part = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{part}"
    _, _, layer, *rest = stem.split(".")
    return f"blk.{layer}.{NAMES['.'.join(rest)]}.{part}"


def _pair(rows: np.ndarray, num_heads: int) -> np.ndarray:
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(make_tokenizer().convert_ids_to_tokens(range(config.vocab_size)))
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["w 1"])


def write_gguf(path: Path, model: PreTrainedModel, kind: gguf.GGMLQuantizationType) -> None:
    """Write a model, with its matrices as blocks of one type."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    _metadata(writer, config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        projection = name.split(".")[-2]
        if config.model_type == "llama" and projection in heads:
            values = _pair(values, heads[projection])
        stored = kind if values.ndim == 2 else Q.F32
        writer.add_tensor(_name(name), gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantize_mixed(source: Path, target: Path, file_type: int) -> None:
    # Built from source, and needed by one kind of fixture alone.
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = 1
    params.pure = False
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        raise RuntimeError(f"llama.cpp did not quantize {source}")


def _finish(folder: Path, model: PreTrainedModel, scheme: str) -> None:
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    type(model.config).from_dict(config).save_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    weights = {
        name: module.weight
        for name, module in reference.named_modules()
        if isinstance(module, torch.nn.Linear)
        and not (name == "lm_head" and model.config.tie_word_embeddings)
    }
    greedy = greedy_tokens(reference.eval(), "as they are")
    write_expected(folder, PACKAGE, scheme, weights, greedy)


def _make(folder: Path, kind: gguf.GGMLQuantizationType, base: Callable[[], PreTrainedModel]) -> None:
    model = base()
    write_gguf(folder / "model.gguf", model, kind)
    _finish(folder, model, f"{kind.name}, {model.config.model_type}")


def _make_mixed(folder: Path, name: str, *, is_tied: bool) -> None:
    # The number of a mix in llama.cpp's llama_ftype is that of gguf's.
    model, file_type = make_wide_llama(tie_word_embeddings=is_tied), gguf.LlamaFileType[f"MOSTLY_{name}"]
    with tempfile.TemporaryDirectory() as unquantized:
        source = Path(unquantized) / "model.gguf"
        write_gguf(source, model, Q.F32)
        _quantize_mixed(source, folder / "model.gguf", int(file_type))
    _finish(folder, model, f"{name} by llama.cpp")


FIXTURES: Final = {
    "gguf-f16": partial(_make, kind=Q.F16, base=partial(make_llama, 64)),
    "gguf-q8-0": partial(_make, kind=Q.Q8_0, base=make_llama),
    "gguf-q5-0": partial(_make, kind=Q.Q5_0, base=make_llama),
    "gguf-q4-0": partial(_make, kind=Q.Q4_0, base=make_llama),
    "gguf-qwen2-q4-0": partial(_make, kind=Q.Q4_0, base=make_qwen2),
    "gguf-q4-k-m": partial(_make_mixed, name="Q4_K_M", is_tied=False),
    "gguf-q5-k-m": partial(_make_mixed, name="Q5_K_M", is_tied=True),
}

if __name__ == "__main__":
    produce(FIXTURES)
