"""Mixtures whose experts are quantized, against products in float64 of the values of their codes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from baton_core.errors import InvalidModelError
from baton_core.ranks.rank_layout import ExpertPlacement, ParallelSizes
from baton_engine.checkpoint.quantization.methods import OnlineQuantization as Kind
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.experts import GroupedExperts, SeparateExperts, load_experts
from baton_engine.models.mixture import MixtureFeedForward
from baton_engine.models.mixture_config import MixtureConfig
from baton_engine.models.shares import ExpertShare
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_kernels.interface.kernels import LayerKernels
from baton_kernels.reference.quantized_product import dequantize, round_inputs
from baton_kernels.selection import select_invariant_kernels, select_kernels
from tests.models import reference_model
from tests.quantized_reference import FIXTURES, quantized_weights
from tests.unit.engine.rank_threads import on_each_rank
from tests.unit.engine.test_mixture import MIXTURES, draw, read_mixture

pytestmark = pytest.mark.slow

ModelFolder = Callable[[str], Path]
NUM_TOKENS = 23
KINDS = (Kind.INT8_WEIGHT_ONLY, Kind.INT4_WEIGHT_ONLY, Kind.MXFP4, Kind.INT8, Kind.FP8_PER_CHANNEL)


def layer_of(variant: str) -> str:
    """Return the prefix of a layer with experts."""
    return f"model.layers.{2 if variant == 'qwen2-moe' else 1}"


class Reference:
    """One mixture with the values of its codes, token by token."""

    def __init__(self, folder: Path, config: MixtureConfig, plan: OnlinePlan, layer: str) -> None:
        self._weights = WeightReader(folder, torch.float32)
        self._config, self._plan = config, plan
        self._prefix = f"{layer}.{config.names.block}"

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.stack([self._token(row) for row in hidden])

    def _token(self, row: Tensor) -> Tensor:
        config = self._config
        probabilities = self._linear("gate", row, config.num_experts, config.hidden_size).softmax(0)
        chosen = probabilities.topk(config.num_experts_per_token)
        total = chosen.values.sum() if config.is_normalized else 1.0
        out = torch.zeros(config.hidden_size, dtype=torch.float64)
        for weight, number in zip(chosen.values / total, chosen.indices.tolist(), strict=True):
            out += weight * self._expert(f"experts.{number}", row, config.intermediate_size)
        if config.shared_intermediate_size is not None:
            scale = self._linear("shared_expert_gate", row, 1, config.hidden_size).sigmoid()
            out += scale * self._expert("shared_expert", row, config.shared_intermediate_size)
        return out

    def _expert(self, expert: str, row: Tensor, size: int) -> Tensor:
        names, hidden_size = self._config.names, self._config.hidden_size
        gate = self._linear(f"{expert}.{names.gate}", row, size, hidden_size)
        up = self._linear(f"{expert}.{names.up}", row, size, hidden_size)
        inner = (functional.silu(gate) * up).float()
        return self._linear(f"{expert}.{names.down}", inner, hidden_size, size)

    def _linear(self, name: str, row: Tensor, out_size: int, in_size: int) -> Tensor:
        layer = f"{self._prefix}.{name}"
        weight = self._weights.load(f"{layer}.weight", (out_size, in_size))
        kind = None if name in ("gate", "shared_expert_gate") else self._plan.kind_of(layer)
        if kind is None:
            return weight.double() @ row.double()
        codes = quantize(weight, kind)
        rounded = round_inputs(row[None], codes.input_rounding)[0]
        return dequantize(codes, torch.float64) @ rounded.double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", sorted(MIXTURES.keys() - {"gpt-oss"}))
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "torch"])
def test_experts_compute_what_their_codes_stand_for(
    variant: str, kind: Kind, is_built: bool, model_folder: ModelFolder
) -> None:
    folder, hidden = model_folder(variant), draw(NUM_TOKENS, 64)
    config, plan = read_mixture(folder, variant), OnlinePlan.of(kind)
    kernels = select_kernels("cpu").layers if is_built else LayerKernels()
    weights = WeightReader(folder, torch.float32, online=plan)
    mixture = MixtureFeedForward(config, weights, kernels, layer_of(variant))
    expected = Reference(folder, config, plan, layer_of(variant)).forward(hidden)
    # One input that is rounded the other way changes a token's outputs: most tokens have none.
    differences = (mixture.forward(hidden) - expected).norm(dim=1) / expected.norm(dim=1)
    assert differences.median() < 1e-5
    assert differences.max() < (0.02 if kind in (Kind.INT8, Kind.FP8_PER_CHANNEL) else 1e-5)


@pytest.mark.usefixtures("needs_build")
@pytest.mark.parametrize("kind", [Kind.INT8, Kind.INT4_WEIGHT_ONLY, Kind.FP8_PER_TENSOR])
def test_a_row_of_an_expert_has_the_same_bits_in_any_company(kind: Kind, model_folder: ModelFolder) -> None:
    folder = model_folder("qwen3-moe")
    config = read_mixture(folder, "qwen3-moe")
    kernels = select_invariant_kernels(torch.device("cpu"), torch.float32, 16, "auto").layers
    weights = WeightReader(folder, torch.float32, online=OnlinePlan.of(kind))
    experts = load_experts(
        config, weights, kernels, f"{layer_of('qwen3-moe')}.mlp.experts", ExpertShare(numbers=range(1, 5, 2))
    )
    rows = draw(NUM_TOKENS, 64)
    together = experts.forward(rows, torch.tensor([9, NUM_TOKENS], dtype=torch.int32))
    for row in range(NUM_TOKENS):
        ends = torch.tensor([int(row < 9), 1], dtype=torch.int32)
        assert torch.equal(experts.forward(rows[row : row + 1], ends)[0], together[row])


@pytest.mark.parametrize(
    ("plan", "form"),
    [
        (OnlinePlan(linear=Kind.INT8), GroupedExperts),
        (OnlinePlan(experts=Kind.INT8), SeparateExperts),
        (OnlinePlan(targets=(("*.experts.2.down_proj", Kind.INT8),)), SeparateExperts),
        (OnlinePlan(experts=Kind.INT8, ignored=("*.experts.*",)), GroupedExperts),
    ],
)
def test_experts_are_separate_where_one_of_their_layers_is_quantized(
    plan: OnlinePlan, form: type, model_folder: ModelFolder
) -> None:
    folder = model_folder("qwen3-moe")
    config = read_mixture(folder, "qwen3-moe")
    weights = WeightReader(folder, torch.float32, online=plan)
    experts = load_experts(
        config,
        weights,
        LayerKernels(),
        f"{layer_of('qwen3-moe')}.mlp.experts",
        ExpertShare(numbers=range(config.num_experts)),
    )
    assert type(experts) is form
    assert experts.is_capturable is False


@pytest.mark.parametrize("plan", [None, OnlinePlan.of(Kind.INT8)], ids=["plain", "int8"])
@pytest.mark.parametrize("variant", ["mixtral", "qwen2-moe"])
def test_experts_fused_as_in_modules_of_transformers_compute_the_same(
    variant: str, plan: OnlinePlan | None, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder, hidden = model_folder(variant), draw(NUM_TOKENS, 64)
    reference_model(folder).save_pretrained(tmp_path, save_original_format=False)
    config, layer = read_mixture(folder, variant), layer_of(variant)

    def compute(source: Path, ranks: Ranks) -> Tensor:
        weights = WeightReader(source, torch.float32, online=plan)
        assert (f"{layer}.mlp.experts.gate_up_proj" in weights) is (source is tmp_path)
        return MixtureFeedForward(config, weights, LayerKernels(), layer, ranks).forward(hidden)

    alone = compute(folder, ALONE)
    assert torch.equal(compute(tmp_path, ALONE), alone)
    for experts in (ExpertPlacement.CUT, ExpertPlacement.ROUND_ROBIN):
        sizes = ParallelSizes(tensor=2, experts=experts)
        found = [on_each_rank(sizes, partial(compute, source)) for source in (folder, tmp_path)]
        assert torch.equal(*found)
        torch.testing.assert_close(found[0], alone, rtol=1e-4, atol=1e-5)


def test_a_router_of_codes_chooses_as_their_values_do(tmp_path: Path) -> None:
    """A router is codes where no name in the configuration leaves it out."""
    name, router, found = "ct-qwen3-moe-w4a16", "model.layers.0.mlp.gate", []
    coded, plain = (Path(shutil.copytree(FIXTURES / name, tmp_path / kind)) for kind in ("coded", "plain"))
    tensors = load_file(coded / "model.safetensors")
    del tensors[f"{router}.weight"]
    for part in ("weight_packed", "weight_scale"):
        tensors[f"{router}.{part}"] = tensors[f"model.layers.0.mlp.experts.0.up_proj.{part}"][:4].clone()
    tensors[f"{router}.weight_shape"] = torch.tensor([4, 128])
    save_file(tensors, coded / "model.safetensors")
    config = json.loads((coded / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_head"]
    (coded / "config.json").write_text(json.dumps(config))
    weight = dequantize(quantized_weights(coded).load_quantized(router, 4, 128))
    tensors = load_file(plain / "model.safetensors")
    save_file({**tensors, f"{router}.weight": weight}, plain / "model.safetensors")
    for folder in (coded, plain):
        mixture = read_mixture(folder, "qwen3-moe"), quantized_weights(folder), LayerKernels()
        found.append(MixtureFeedForward(*mixture, "model.layers.0").forward(draw(NUM_TOKENS, 128)))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("part", ["weight_packed", "weight_scale"])
def test_an_expert_that_is_not_whole_is_refused_by_name(part: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "ct-qwen3-moe-w4a16", tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.0.mlp.experts.2.up_proj.{part}"
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidModelError, match=f"tensor {re.escape(name)} is missing; allowed: weights"):
        load_model(EngineSettings(model=str(folder)))
