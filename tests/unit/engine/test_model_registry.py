"""`ModelRegistry`: code from elsewhere for an architecture, or a refusal that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton import ModelRegistry
from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine.models.decoder import Decoder
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.registry import read_model_config, why_not_native
from tests.models import make_model
from tests.registered_model import ARCHITECTURE, Shifted


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRegistry, "_registered", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_model(tmp_path_factory.mktemp("registry") / "shifted", "llama")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [ARCHITECTURE]}))
    return folder


@pytest.mark.parametrize("model", [Shifted, "tests.registered_model:Shifted"])
def test_a_registered_class_reads_and_builds_its_architecture(folder: Path, model: type | str) -> None:
    with pytest.raises(InvalidModelError, match="architectures is 'ShiftedForCausalLM'; allowed: "):
        read_model_config(folder)
    assert ARCHITECTURE not in ModelRegistry.get_supported_archs()
    ModelRegistry.register_model(ARCHITECTURE, model)
    assert {ARCHITECTURE, "LlamaForCausalLM"} <= ModelRegistry.get_supported_archs()
    config = read_model_config(folder)
    assert isinstance(config, DecoderConfig)
    assert why_not_native(config) == "ShiftedForCausalLM, a registered model"
    family = ModelRegistry.find(ARCHITECTURE)
    assert family is not None
    assert family.build is Shifted


def test_a_registered_class_comes_before_native_code() -> None:
    ModelRegistry.register_model("LlamaForCausalLM", Shifted)
    family = ModelRegistry.find("LlamaForCausalLM")
    assert family is not None
    assert family.build is Shifted


class OtherForCausalLM:
    """A class as vLLM's models are: made of its own layers."""

    def __init__(self, *, vllm_config: object, prefix: str = "") -> None:
        raise NotImplementedError

    def forward(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            OtherForCausalLM,
            "OtherForCausalLM'> without read_config, logits; allowed: a class with read_config",
        ),
        (Decoder, "Decoder'> without read_config; allowed: a class with read_config"),
        (
            "tests.registered_model",
            "model_cls is 'tests.registered_model'; allowed: a class, or package.module",
        ),
    ],
)
def test_a_class_that_cannot_be_run_is_refused_at_once(model: type | str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        ModelRegistry.register_model("Any", model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("tests.nowhere:Shifted", r"is 'tests.nowhere:Shifted' \(No module named"),
        ("tests.registered_model:Missing", r"is 'tests.registered_model:Missing' \(module"),
        (f"{__name__}:OtherForCausalLM", "without read_config, logits; allowed"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_where_it_is_used(folder: Path, model: str, said: str) -> None:
    ModelRegistry.register_model(ARCHITECTURE, model)
    with pytest.raises(
        InvalidConfigError, match=f"the model of {ARCHITECTURE} {said}" if said[:2] == "is" else said
    ):
        read_model_config(folder)


def test_a_configuration_of_another_architecture_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.registered_model.ARCHITECTURE", "Another")
    ModelRegistry.register_model(ARCHITECTURE, Shifted)
    with pytest.raises(InvalidModelError, match="is 'Another'; allowed: ShiftedForCausalLM"):
        read_model_config(folder)
