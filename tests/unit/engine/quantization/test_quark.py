"""Descriptions of Quark that say the same in other ways than those of the fixtures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.quantization.layer_format import CheckpointQuantization
from tests.quantized_reference import FIXTURES

ATTENTION = "model.layers.0.self_attn"


def description(name: str) -> dict[str, Any]:
    section: dict[str, Any] = json.loads((FIXTURES / name / "config.json").read_text())["quantization_config"]
    return section


def read(section: dict[str, Any]) -> CheckpointQuantization:
    quantization = read_quantization(ConfigFields("config.json", {"quantization_config": section}), FIXTURES)
    assert quantization is not None
    return quantization


@pytest.mark.parametrize("query", [None, "*q_proj", f"{ATTENTION}.q_proj"])
def test_schemes_of_the_cache_may_stand_under_names_of_layers_and_beside_one_of_queries(
    query: str | None,
) -> None:
    section = description("quark-fp8-kv-fp8")
    by_pattern = section["layer_quant_config"]
    by_name = {f"{ATTENTION}.{pattern[1:]}": scheme for pattern, scheme in by_pattern.items()}
    if query is not None:
        by_name[query] = by_pattern["*k_proj"]
    named = read({**section, "layer_quant_config": by_name})
    for layer in ("q_proj", "k_proj", "o_proj"):
        name = f"{ATTENTION}.{layer}"
        assert named.layer_format(name) == read(section).layer_format(name)


def test_how_stored_scales_were_calculated_changes_nothing() -> None:
    section = description("quark-mxfp4")
    stored = read(section).layer_format(f"{ATTENTION}.k_proj")
    section["global_quant_config"]["weight"]["scale_calculation_mode"] = "floor"
    assert read(section).layer_format(f"{ATTENTION}.k_proj") == stored
