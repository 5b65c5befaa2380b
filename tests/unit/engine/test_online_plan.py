"""Which layers are quantized while they are loaded, as `quantization` and `quantization_config` say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.quantization.methods import OnlineQuantization as Kind
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan, read_online_plan
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("int8", None, Kind.INT8),
        ("fp8_per_tensor", {}, Kind.FP8_PER_TENSOR),
        (None, {"linear": "mxfp8"}, Kind.MXFP8),
        ("mxfp8", {"linear": {"weight": "fp8_per_block_static"}}, Kind.FP8_PER_BLOCK),
        ("mxfp8", {"linear": {"weight": None, "activation": None}}, None),
        ("int8", {"ignore": [Q_PROJ]}, None),
        ("int8", {"ignore": ["*.q_proj"]}, None),
        ("int8", {"ignore": [r"re:model\.layers\.0\."]}, None),
        ("int8", {"ignore": ["q_proj"]}, Kind.INT8),
        (None, {"targets": {"*.k_proj": "mxfp4", r"re:.*\.q_proj$": "mxfp8"}}, Kind.MXFP8),
        (None, {"targets": {"*.k_proj": "mxfp4"}}, None),
        (None, {"moe": "mxfp8"}, None),
    ],
)
def test_a_layer_has_the_kind_that_the_settings_say(
    kind: str | None, config: dict[str, Any] | None, expected: Kind | None
) -> None:
    assert read_online_plan(kind, config).kind_of(Q_PROJ) == expected


def test_experts_have_a_kind_of_their_own_and_the_head_only_some() -> None:
    plan = read_online_plan("int8", {"moe": "mxfp4"})
    assert plan.kind_of("model.layers.0.mlp.experts.0.down_proj") == Kind.MXFP4
    assert plan.kind_of("lm_head") == Kind.INT8
    assert OnlinePlan.of(Kind.FP8_PER_TENSOR).kind_of("lm_head") is None


def test_equal_plans_have_equal_names_and_others_do_not() -> None:
    names = {
        read_online_plan(kind, config).name
        for kind, config in (
            ("int8", None),
            ("int8", {"ignore": []}),
            ("int8", {"ignore": ["a"]}),
            ("int8", {"ignore": ["a" * 200]}),
            (None, {"linear": "int8"}),
            (None, {"targets": {"*": "int8"}}),
        )
    }
    assert len(names) == 5
    assert "int8" in names
    assert max(map(len, names)) <= 100


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bits": 4}, "quantization_config has bits: 4; allowed: the keys linear, moe, ignore, targets"),
        ({"linear": "int3"}, "quantization_config has linear: 'int3'; allowed: int8, int8_per_channel"),
        ({"linear": {"activation": "mxfp8"}}, "allowed: weight, and activation None"),
        ({"ignore": "lm_head"}, "quantization_config has ignore: 'lm_head'; allowed: a list"),
        ({"ignore": ["re:("]}, "quantization_config has ignore: 're:('; allowed: names, or regular"),
        ({"targets": ["a"]}, "quantization_config has targets: ['a']; allowed: kinds by names of layers"),
        ({"targets": {"a": None}}, "quantization_config has targets: None; allowed: int8"),
        ({"targets": {"a": "int8"}, "linear": "int8"}, "allowed: None, beside linear or moe"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(message)):
        read_online_plan(None, config)


def test_layers_that_are_ignored_take_their_bytes(model_folder: Callable[[str], Path]) -> None:
    def num_bytes(**config: Any) -> int:
        settings = EngineSettings(model=str(model_folder("llama")), quantization="int8", **config)
        loaded = load_model(settings)
        assert loaded.quantization.online is not None
        return sum(layer._feed_forward._down.packed_bytes for layer in loaded.model._layers)  # type: ignore[attr-defined]

    assert num_bytes() < 0.5 * num_bytes(quantization_config={"ignore": ["*.down_proj"]})
    parted = num_bytes(quantization_config={"ignore": ["*.k_proj"]})
    assert parted == num_bytes()
