"""Descriptions of quantized checkpoints that lie beside config.json: read as if they were in it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import describe_folder, load_model
from baton_engine.models.registry import read_model_config
from baton_kernels.reference.quantized_product import dequantize
from tests.quantized_reference import FIXTURES, quantized_weights

GPTQ_FILE, MODELOPT_FILE = "quantize_config.json", "hf_quant_config.json"
AUTO_ROUND_FILE: Final = "quantization_config.json"
WRITTEN: Final = {
    "gptq-v1": GPTQ_FILE,
    "gptq-v2": GPTQ_FILE,
    "gptq-desc-act": GPTQ_FILE,
    "auto-round": AUTO_ROUND_FILE,
    "auto-awq": AUTO_ROUND_FILE,
    "auto-gptq": AUTO_ROUND_FILE,
    "modelopt-fp8": MODELOPT_FILE,
    "modelopt-nvfp4": MODELOPT_FILE,
}
"""Fixtures whose package wrote the description a second time, into a file of its own."""


def without_section(name: str, folder: Path, separate: str | None = None) -> Path:
    """Copy a fixture without `quantization_config` and with one further file at most; returns the copy."""
    config = json.loads((FIXTURES / name / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("model.safetensors", "expected.json", *([separate] if separate else [])):
        shutil.copy(FIXTURES / name / file, folder / file)
    return folder


def has_the_packages_weights(folder: Path) -> bool:
    expected, weights = json.loads((folder / "expected.json").read_text()), quantized_weights(folder)
    for layer, one in expected["weights"].items():
        values = dequantize(weights.load_quantized(layer, *one["shape"]))
        rounded = values.to(getattr(torch, expected["dtype"])).float() + 0.0
        if hashlib.sha256(rounded.numpy().tobytes()).hexdigest() != one["sha256"]:
            return False
    return len(expected["weights"]) > 0


def read(folder: Path, **overrides: Any) -> Any:
    return read_quantization(ConfigFields.from_file(folder / "config.json").updated(overrides), folder)


@pytest.mark.parametrize(("name", "separate"), WRITTEN.items())
def test_a_separate_file_gives_the_packages_weights(name: str, separate: str, tmp_path: Path) -> None:
    assert has_the_packages_weights(without_section(name, tmp_path, separate))


@pytest.mark.parametrize(
    ("name", "file", "description", "method"),
    [
        ("gptq-v1", GPTQ_FILE, {"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ("autoawq", "quant_config.json", {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}, "awq"),
    ],
)
def test_older_files_need_not_name_their_method(
    name: str, file: str, description: dict[str, Any], method: str, tmp_path: Path
) -> None:
    folder = without_section(name, tmp_path)
    (folder / file).write_text(json.dumps(description))
    assert read(folder).method == method
    assert has_the_packages_weights(folder)


def test_config_json_decides_where_it_has_the_key(tmp_path: Path) -> None:
    folder = without_section("gptq-v1", tmp_path)
    assert read(folder) is None
    (folder / GPTQ_FILE).write_text(json.dumps({"bits": 4}))
    assert read(folder).method == "gptq"
    assert read(folder, quantization_config=None) is None
    assert read(folder, quantization_config={"quant_method": "awq"}).method == "awq"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (GPTQ_FILE, '{"bits": 5}', "quantize_config.json: bits is 5; allowed: 2, 3, 4, 8"),
        (GPTQ_FILE, "[]", "quantize_config.json holds list; allowed: one JSON object"),
        (MODELOPT_FILE, '{"quantization": {"quant_algo": "W4A8"}}', "quant_algo is 'W4A8'; allowed: FP8"),
        (MODELOPT_FILE, '{"quantization": 4}', "quantization is 4; allowed: an object"),
        (AUTO_ROUND_FILE, '{"bits": 4}', "quant_method is ''; allowed: "),
    ],
)
def test_refusals_name_the_file(file: str, content: str, message: str, tmp_path: Path) -> None:
    folder = without_section("gptq-v1", tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(InvalidModelError, match=re.escape(message)):
        read(folder)


def test_a_separate_file_is_part_of_the_models_identity(tmp_path: Path) -> None:
    folder = without_section("gptq-v1", tmp_path)
    config = read_model_config(folder)
    plain = describe_folder(folder, config)
    (folder / GPTQ_FILE).write_text('{"bits": 4, "group_size": 128}')
    grouped = describe_folder(folder, config)
    (folder / GPTQ_FILE).write_text('{"bits": 4, "group_size": 64}')
    assert len({repr(one) for one in (plain, grouped, describe_folder(folder, config))}) == 3


def test_a_model_is_loaded_by_its_separate_file(tmp_path: Path) -> None:
    folder = without_section("gptq-v1", tmp_path)
    with pytest.raises(InvalidModelError, match="q_proj"):
        load_model(EngineSettings(model=str(folder)))
    shutil.copy(FIXTURES / "gptq-v1" / GPTQ_FILE, folder / GPTQ_FILE)
    load_model(EngineSettings(model=str(folder), quantization="gptq"))
    with pytest.raises(InvalidConfigError, match=r"'awq'; allowed .*: gptq, as its files say"):
        load_model(EngineSettings(model=str(folder), quantization="awq"))
