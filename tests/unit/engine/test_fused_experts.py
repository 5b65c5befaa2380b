"""GPT-OSS's experts: their clamped gate, and codes in the place of weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from baton_engine.checkpoint.quantization.methods import OnlineQuantization as Kind
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.experts import SeparateExperts
from baton_engine.models.fused_experts import GroupedClampedExperts, clamped_swiglu, load_fused_experts
from baton_engine.models.mixture import MixtureFeedForward
from baton_engine.models.mixture_config import ClampedSwiGLU
from baton_engine.models.shares import ExpertShare
from baton_kernels.interface.kernels import LayerKernels
from baton_kernels.reference.quantized_product import dequantize
from baton_kernels.selection import select_invariant_kernels, select_kernels
from tests.models import reference_model
from tests.quantized_reference import FIXTURES, quantized_weights
from tests.unit.engine.test_mixture import draw, read_mixture

LAYER = "model.layers.1"
SWIGLU = ClampedSwiGLU(alpha=1.702, limit=7.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "torch"])
def test_the_gate_is_that_of_transformers(is_built: bool, dtype: torch.dtype) -> None:
    kernels = select_kernels("cpu").layers if is_built else LayerKernels()
    gate_up = torch.cat((draw(40, 64) * 5, draw(1, 64) * 1e4, torch.tensor([[7.0, -7.0] * 32]))).to(dtype)
    theirs = GptOssExperts.__new__(GptOssExperts)
    torch.nn.Module.__init__(theirs)
    theirs.alpha, theirs.limit = SWIGLU.alpha, SWIGLU.limit
    in_turns = gate_up.double().view(-1, 2, 32).transpose(1, 2).flatten(1)
    expected = theirs._apply_gate(in_turns)
    found = clamped_swiglu(gate_up, SWIGLU, kernels)
    assert found.dtype == dtype
    rounding = 2**-8 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=1e-6)


def test_a_number_that_is_none_stays_in_its_row() -> None:
    gate_up = draw(3, 64)
    gate_up[1, 5] = torch.nan
    found = clamped_swiglu(gate_up, SWIGLU, LayerKernels())
    assert found[1, 5].isnan()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("kind", [Kind.INT8_WEIGHT_ONLY, Kind.INT4_WEIGHT_ONLY, Kind.MXFP4])
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "torch"])
def test_experts_that_are_quantized_while_loading_compute_what_their_codes_stand_for(
    kind: Kind, is_built: bool, model_folder: Callable[[str], Path]
) -> None:
    folder, hidden = model_folder("gpt-oss"), draw(23, 64)
    kernels = select_kernels("cpu").layers if is_built else LayerKernels()
    weights = WeightReader(folder, torch.float32, online=OnlinePlan.of(kind))
    mixture = MixtureFeedForward(read_mixture(folder, "gpt-oss"), weights, kernels, LAYER)
    reference = reference_model(folder).model.layers[1].mlp
    for parameter in (reference.experts.gate_up_proj, reference.experts.down_proj):
        stored = [dequantize(quantize(expert.T.contiguous(), kind)).T for expert in parameter.data]
        parameter.data = torch.stack(stored)
    with torch.inference_mode():
        expected = reference(hidden[None])[0][0]
        torch.testing.assert_close(mixture.forward(hidden), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("plan", "form"),
    [
        (OnlinePlan(linear=Kind.INT8), GroupedClampedExperts),
        (OnlinePlan(experts=Kind.INT8), SeparateExperts),
        (OnlinePlan(targets=(("*.experts.down_proj", Kind.INT8),)), SeparateExperts),
    ],
)
def test_experts_are_separate_where_a_projection_is_quantized(
    plan: OnlinePlan, form: type, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder("gpt-oss")
    weights = WeightReader(folder, torch.float32, online=plan)
    config = read_mixture(folder, "gpt-oss")
    assert config.swiglu is not None
    prefix = f"{LAYER}.mlp.experts"
    experts = load_fused_experts(
        config, config.swiglu, weights, LayerKernels(), prefix, ExpertShare(numbers=range(config.num_experts))
    )
    assert type(experts) is form


@pytest.mark.usefixtures("needs_build")
def test_a_row_of_stored_codes_has_the_same_bits_in_any_company() -> None:
    folder = FIXTURES / "gpt-oss-mxfp4"
    kernels = select_invariant_kernels(torch.device("cpu"), torch.float32, 32, "auto").layers
    mixture = MixtureFeedForward(read_mixture(folder, "gpt-oss"), quantized_weights(folder), kernels, LAYER)
    hidden = draw(23, 64)
    together = mixture.forward(hidden)
    for row in range(23):
        assert torch.equal(mixture.forward(hidden[row : row + 1])[0], together[row])
