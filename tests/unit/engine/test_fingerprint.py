"""The fingerprint changes with whatever makes KV blocks differ, and with nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_core.errors import InvalidModelError
from baton_engine.fingerprint import model_fingerprint


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def test_copies_agree_whatever_lies_beside_them(folder: Path, model_folder: Callable[[str], Path]) -> None:
    (folder / "README.md").write_text("notes")
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    assert model_fingerprint(folder) == model_fingerprint(model_folder("llama"))
    assert len(model_fingerprint(folder)) == 64


def test_caches_of_another_variant_differ(folder: Path) -> None:
    assert len({model_fingerprint(folder, variant) for variant in ("", "a", "b")}) == 3


def test_quantized_layers_make_another_model(folder: Path) -> None:
    assert len({model_fingerprint(folder, *given) for given in ((), ("", "int8"), ("int8", ""))}) == 3


def test_a_changed_config_changes_it(folder: Path) -> None:
    before = model_fingerprint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert model_fingerprint(folder) != before


def test_a_changed_header_changes_it(folder: Path) -> None:
    before = model_fingerprint(folder)
    path = folder / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "revision": "2"})
    assert model_fingerprint(folder) != before


def test_other_weights_of_the_same_shapes_change_it(folder: Path) -> None:
    before = model_fingerprint(folder)
    path = folder / "model.safetensors"
    save_file({name: tensor + 0.01 for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    assert model_fingerprint(folder) != before


def test_another_element_type_changes_it(folder: Path) -> None:
    before = model_fingerprint(folder)
    path = folder / "model.safetensors"
    save_file({name: t.to(torch.bfloat16) for name, t in load_file(path).items()}, path, {"format": "pt"})
    assert model_fingerprint(folder) != before


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"config\.json is missing"):
        model_fingerprint(tmp_path)


def test_it_is_computed_without_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from baton_engine.fingerprint import model_fingerprint\n"
        "assert len(model_fingerprint(Path(sys.argv[1]))) == 64\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 0
