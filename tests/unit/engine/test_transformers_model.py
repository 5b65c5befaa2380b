"""Decoders without native code, through Transformers' attention interface."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    Cohere2Config,
    CTRLConfig,
    DeepseekV3Config,
    ElectraConfig,
    FalconH1Config,
    FalconMambaConfig,
    Gemma4TextConfig,
    Gemma4UnifiedTextConfig,
    GPTBigCodeConfig,
    GPTJConfig,
    GraniteSWAConfig,
    JetMoeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxConfig,
    MoshiConfig,
    OlmoeConfig,
    PretrainedConfig,
    T5Config,
    XGLMConfig,
)
from transformers.models.auto import configuration_auto, modeling_auto
from transformers.models.llama.modeling_llama import LlamaMLP

from baton_core.errors import InvalidModelError
from baton_engine.models.registry import read_model_config
from baton_engine.models.transformers_config import TransformersConfig
from tests.models import make_prompt, randomise, reference_logits
from tests.unit.engine.test_forward import native_logits

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save_config(folder: Path, config: PretrainedConfig, architecture: str) -> Path:
    """Write a folder that holds nothing but config.json."""
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return folder


def save_model(folder: Path, config: PretrainedConfig) -> Path:
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, seed=0)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Cohere2Config(**SMALL, sliding_window=7), id="alternating windows"),
        pytest.param(OlmoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2), id="experts"),
        pytest.param(
            GPTBigCodeConfig(**{**SMALL, "num_key_value_heads": 1, "n_inner": 96}), id="learned positions"
        ),
        pytest.param(
            DeepseekV3Config(
                **{**SMALL, "num_key_value_heads": 4},
                n_routed_experts=8,
                n_group=2,
                topk_group=1,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                first_k_dense_replace=1,
                kv_lora_rank=16,
                q_lora_rank=24,
                qk_rope_head_dim=8,
                qk_nope_head_dim=16,
                v_head_dim=16,
            ),
            id="values smaller than keys",
        ),
        pytest.param(
            CTRLConfig(vocab_size=512, n_embd=64, dff=96, n_layer=2, n_head=4, n_positions=512),
            id="embeddings scaled in place",
        ),
        pytest.param(
            Gemma4UnifiedTextConfig(
                **{**SMALL, "num_hidden_layers": 2},
                head_dim=16,
                global_head_dim=16,
                sliding_window=7,
                layer_types=["sliding_attention", "full_attention"],
            ),
            id="a head that hands on states",
        ),
    ],
)
def test_logits_equal_those_of_transformers_in_one_piece_and_in_chunks(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    folder, prompt = save_model(tmp_path / "model", config), make_prompt(45)
    assert isinstance(read_model_config(folder), TransformersConfig)
    expected = reference_logits(folder, prompt)
    for chunk_len in (45, 7):
        torch.testing.assert_close(native_logits(folder, prompt, chunk_len), expected, atol=1e-4, rtol=0)
    last = native_logits(folder, prompt, 45, rows=[44])
    torch.testing.assert_close(last, expected[-1:], atol=1e-4, rtol=0)


def test_windows_and_heads_are_found_without_weights(tmp_path: Path) -> None:
    config = Cohere2Config(**{**SMALL, "num_hidden_layers": 8}, sliding_window=7)
    spec = read_model_config(save_config(tmp_path, config, "Cohere2ForCausalLM")).kv_spec(16, "float32")
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim) == (2, 2, 16)
    windows = {layer: group.window for group in spec.groups for layer in group.layers}
    assert [windows[layer] for layer in range(8)] == [7, 7, 7, None, 7, 7, 7, None]


@pytest.mark.parametrize(
    ("config", "architecture", "reason"),
    [
        (
            BloomConfig(hidden_size=64, n_layer=2, n_head=4),
            "BloomForCausalLM",
            "no layer that calls Transformers' attention interface",
        ),
        (GPTJConfig(n_embd=64, n_layer=2, n_head=4), "GPTJForCausalLM", "attention classes of its own"),
        (FalconH1Config(**SMALL), "FalconH1ForCausalLM", "a convolution over tokens"),
        (GraniteSWAConfig(**SMALL), "GraniteSWAForCausalLM", "further tensors: s_aux"),
        (
            FalconMambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=512),
            "FalconMambaForCausalLM",
            "a convolution over tokens",
        ),
        (
            XGLMConfig(vocab_size=512, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4),
            "XGLMForCausalLM",
            "attention classes of its own",
        ),
        (
            JetMoeConfig(**SMALL, num_local_experts=4, kv_channels=16),
            "JetMoeForCausalLM",
            "code that looks at the values of its tensors",
        ),
        (
            MiniMaxConfig(**SMALL, head_dim=16),
            "MiniMaxForCausalLM",
            "code that looks at the values of its tensors",
        ),
        (
            Gemma4TextConfig(
                **SMALL,
                head_dim=16,
                global_head_dim=16,
                layer_types=["full_attention"] * 3,
                hidden_size_per_layer_input=16,
                vocab_size_per_layer_input=512,
            ),
            "Gemma4ForCausalLM",
            "layers that need token ids, and not their embeddings alone",
        ),
        (
            MoshiConfig(**SMALL, sliding_window=8),
            "MoshiForCausalLM",
            "a cache of 8 tokens in layer 0, whose mask has no window",
        ),
        (T5Config(), "T5ForConditionalGeneration", "an encoder"),
        (ElectraConfig(**SMALL), "ElectraForMaskedLM", "no class of this name"),
        (
            OlmoeConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "OlmoeForCausalLM",
            "rope_type 'dynamic', which lets the longest sequence of a step decide",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_work_is_refused_with_the_reason(
    config: PretrainedConfig, architecture: str, reason: str, tmp_path: Path
) -> None:
    save_config(tmp_path, config, architecture)
    with pytest.raises(
        InvalidModelError,
        match=f"architectures is '{architecture}'; allowed: LlamaFor.*this one has .*{reason}",
    ):
        read_model_config(tmp_path)


def test_code_that_fails_without_a_word_is_refused_by_the_name_of_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    save_config(tmp_path, OlmoeConfig(**SMALL), "OlmoeForCausalLM")
    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(InvalidModelError, match=r"this one fails with NotImplementedError$"):
        read_model_config(tmp_path)


def test_an_architecture_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    values = {
        "architectures": ["NobodysForCausalLM"],
        "model_type": "nobodys",
        "auto_map": {"AutoConfig": "a.B"},
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "a.py").write_text("raise AssertionError('code of a model folder was run')")
    with pytest.raises(InvalidModelError, match="architectures is 'NobodysForCausalLM'; allowed: LlamaFor"):
        read_model_config(tmp_path)


def test_without_transformers_the_error_names_the_extra(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        InvalidModelError,
        match=r"architectures is 'GPTNeoXForCausalLM'; allowed: LlamaForCausalLM, .*'baton\[transformers\]'",
    ):
        read_model_config(model_folder("gpt-neox"))
    assert read_model_config(model_folder("llama")).vocab_size == 512


def test_missing_weights_are_refused(tmp_path: Path, model_folder: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(model_folder("gpt-neox"), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = "gpt_neox.layers.1.attention.dense.weight"
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidModelError, match=f"tensor {name} is missing"):
        native_logits(folder, [5, 6], 2)


class MeetingConfig(LlamaConfig):
    model_type = "meeting"


class MeetingMLP(LlamaMLP):
    """Lets tokens meet outside the attention."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.cumsum(dim=1))


class MeetingForCausalLM(LlamaForCausalLM):
    config_class = MeetingConfig

    def __init__(self, config: MeetingConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = MeetingMLP(config)


@pytest.fixture
def _meeting_model() -> Iterator[None]:
    AutoConfig.register("meeting", MeetingConfig)
    AutoModelForCausalLM.register(MeetingConfig, MeetingForCausalLM)
    yield
    del configuration_auto.CONFIG_MAPPING._extra_content["meeting"]
    del modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING._extra_content[MeetingConfig]


@pytest.mark.usefixtures("_meeting_model")
def test_a_model_whose_tokens_meet_outside_the_attention_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", MeetingConfig(**SMALL))
    with pytest.raises(
        InvalidModelError, match="MeetingForCausalLM has tokens that meet outside its attention"
    ):
        native_logits(folder, [5, 6], 2)


@pytest.mark.usefixtures("_meeting_model")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AttributeError("no such state"), "AttributeError: no such state; allowed"),
        (AssertionError(), "AssertionError; allowed"),
    ],
)
def test_a_model_whose_code_fails_with_weights_is_refused_by_its_error(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path / "model", MeetingConfig(**SMALL))

    def fail(mlp: LlamaMLP, x: Tensor) -> Tensor:
        if not x.is_meta:
            raise error
        return x

    monkeypatch.setattr(MeetingMLP, "forward", fail)
    with pytest.raises(InvalidModelError, match=f"MeetingForCausalLM has code that fails with {said}"):
        native_logits(folder, [5, 6], 2)


def test_a_cache_as_long_as_the_longest_sequence_needs_no_window(tmp_path: Path) -> None:
    config = MoshiConfig(**{**SMALL, "max_position_embeddings": 8}, sliding_window=8)
    assert read_model_config(save_config(tmp_path, config, "MoshiForCausalLM")).max_position_embeddings == 8


def test_a_window_that_the_family_does_not_know_is_passed_over(tmp_path: Path) -> None:
    config = OlmoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2, sliding_window=8)
    folder = save_config(tmp_path, config, "OlmoeForCausalLM")
    assert read_model_config(folder).layer_windows == (None,) * SMALL["num_hidden_layers"]
