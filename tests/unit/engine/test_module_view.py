"""A loaded model as torch's modules show it: every tensor once, in the model's own memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.module_view import module_view
from baton_engine.tensor_moves import find_tensors
from tests.models import make_model


def load(folder: Path, **settings: Any) -> Any:
    return load_model(EngineSettings(model=str(folder), **settings)).model


@pytest.mark.parametrize("settings", [{}, {"cpu_kernels": "torch"}, {"quantization": "int8"}])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen3-moe", "gpt2"])
def test_the_view_has_every_tensor_of_the_model(
    variant: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    if variant == "qwen3-moe" and "quantization" in settings:
        settings = {"dtype": "float16"}
    model = load(make_model(tmp_path / "model", variant), **settings)
    view = module_view(model, "SomeForCausalLM")
    shown = {tensor.data_ptr() for tensor in view.state_dict().values()}
    assert shown == {tensor.data_ptr() for tensor in find_tensors(model)}
    assert {parameter.data_ptr() for parameter in view.parameters()} == shown
    assert (type(view).__name__, repr(view)[:16]) == ("SomeForCausalLM", "SomeForCausalLM(")
    assert any(type(module).__name__ == "Linear" for module in view.modules())
    assert (view.dtype, view.device) == (model.dtype, torch.device("cpu"))


def test_names_lead_through_the_parts(tmp_path: Path) -> None:
    model = load(make_model(tmp_path / "model"), cpu_kernels="torch", dtype="float16")
    shapes = {
        name: list(one.shape) for name, one in module_view(model, "LlamaForCausalLM").named_parameters()
    }
    assert shapes["embedding.table"] == [512, 64]
    assert shapes["layers.1.before_attention.weight"] == [64]
    assert shapes["layers.0.attention.qkv.multiply.weight"][1] == 64
    with pytest.raises(AttributeError, match="no_such_part"):
        module_view(model, "LlamaForCausalLM").no_such_part  # noqa: B018


def test_a_model_that_transformers_runs_is_shown_itself() -> None:
    class Running:
        _model = nn.Linear(2, 2)

    assert module_view(Running(), "Other") is Running._model


def test_a_view_computes_what_the_part_computes(tmp_path: Path) -> None:
    class Doubling:
        def __init__(self) -> None:
            self._weight = torch.full((1,), 2.0)

        def forward(self, x: Tensor) -> Tensor:
            return x * self._weight

    assert module_view(Doubling(), "Doubling")(torch.ones(2)).tolist() == [2.0, 2.0]
