"""Mixtures of experts, against Transformers' blocks and a product expert by expert."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.experts import grouped_linear, is_device_only
from baton_engine.models.mixture import MixtureFeedForward
from baton_engine.models.mixture_config import MixtureConfig, read_mixture_config
from baton_kernels.interface.kernels import LayerKernels
from tests.models import reference_model

MIXTURES = {
    "mixtral": "MixtralForCausalLM",
    "qwen2-moe": "Qwen2MoeForCausalLM",
    "qwen3-moe": "Qwen3MoeForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
ATOL = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


def read_mixture(folder: Path, variant: str) -> MixtureConfig:
    config = read_mixture_config(MIXTURES[variant], ConfigFields.from_file(folder / "config.json"), 3)
    assert config is not None
    return config


def load_mixture(folder: Path, variant: str) -> MixtureFeedForward:
    """Load the experts of the last layer of one of the small models."""
    config, weights = read_mixture(folder, variant), WeightReader(folder, torch.float32)
    names = config.names
    layer = 2 if f"model.layers.2.{names.block}.{names.router}.weight" in weights else 1
    return MixtureFeedForward(config, weights, LayerKernels(), f"model.layers.{layer}")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("variant", MIXTURES)
def test_a_mixture_equals_that_of_transformers(variant: str, model_folder: Callable[[str], Path]) -> None:
    folder, hidden = model_folder(variant), draw(23, 64)
    with torch.inference_mode():
        expected = reference_model(folder).model.layers[-1].mlp(hidden[None])
        got = load_mixture(folder, variant).forward(hidden)
    expected = expected[0]  # of one sequence, or of a pair with the router's scores
    torch.testing.assert_close(got, expected.view_as(got), atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", MIXTURES)
def test_the_result_of_a_token_does_not_depend_on_its_company(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    mixture, hidden = load_mixture(model_folder(variant), variant), draw(23, 64)
    together = mixture.forward(hidden)
    alone = torch.cat([mixture.forward(row[None]) for row in hidden])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixture.forward(hidden[order]), together[order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("in_features", [32, 30])
@pytest.mark.parametrize("sizes", [[3, 0, 5, 1], [0, 0, 9, 0], [1, 1, 1, 1]])
def test_every_row_is_multiplied_by_the_weight_of_its_group(
    sizes: list[int], in_features: int, dtype: torch.dtype
) -> None:
    weight = draw(len(sizes), 24, in_features, seed=1).to(dtype)
    rows = draw(sum(sizes), in_features).to(dtype)
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    expected = torch.einsum("ri,roi->ro", rows.double(), weight.double()[groups])
    got = grouped_linear(rows, weight, torch.tensor(sizes).cumsum(0).int())
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=ATOL[dtype], rtol=0)


@pytest.mark.parametrize(
    ("capability", "dtype", "in_features", "expected"),
    [
        ((9, 0), torch.bfloat16, 32, True),
        ((10, 0), torch.bfloat16, 32, True),
        ((9, 0), torch.bfloat16, 30, False),
        ((9, 0), torch.float16, 32, False),
        ((9, 0), torch.float32, 32, False),
        ((8, 0), torch.bfloat16, 32, False),
        ((12, 0), torch.bfloat16, 32, False),
    ],
)
def test_a_product_stays_on_the_device_where_torch_has_a_kernel_for_it(
    capability: tuple[int, int],
    dtype: torch.dtype,
    in_features: int,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        weight = torch.empty(4, 24, in_features, dtype=dtype, device="cuda")
    assert is_device_only(weight) is expected


def test_dense_layers_are_those_that_the_configuration_names() -> None:
    values = {
        "hidden_size": 64,
        "moe_intermediate_size": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    config = read_mixture_config("Qwen3MoeForCausalLM", ConfigFields("config.json", values), 6)
    assert config is not None
    assert config.layers == {1, 5}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num_experts_per_tok", 7, r"at most the number of experts \(6\)"),
        ("num_experts", 0, "an integer of 1 to"),
        ("moe_intermediate_size", None, "an integer of 1 to"),
        ("mlp_only_layers", ["1"], "a list of layer numbers"),
        ("norm_topk_prob", 1, "true, false"),
    ],
)
def test_a_wrong_value_is_refused(
    key: str, value: object, allowed: str, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    folder = Path(shutil.copytree(model_folder("qwen2-moe"), tmp_path / "model"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {key: value}))
    with pytest.raises(InvalidModelError, match=rf"{key} is .*; allowed: {allowed}"):
        read_mixture(folder, "qwen2-moe")
