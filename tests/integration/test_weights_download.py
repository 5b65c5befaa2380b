"""Which weight files a worker fetches from the hub: safetensors, and torch's format only without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.hub import serving_hub
from tests.models import make_model

REPO = "somebody/tiny"
RESOLVE = """
import sys
from baton_engine.checkpoint.model_source import resolve_model
names = [path.name for path in resolve_model(sys.argv[1]).iterdir()]
print(*sorted(name for name in names if name.endswith((".bin", ".safetensors"))))
"""


@pytest.mark.parametrize(
    ("published", "fetched"),
    [
        (["pytorch_model.bin", "training_args.bin"], "pytorch_model.bin"),
        (["model.safetensors", "pytorch_model.bin"], "model.safetensors"),
    ],
)
def test_one_form_of_the_weights_is_fetched(published: list[str], fetched: str, tmp_path: Path) -> None:
    repository = make_model(tmp_path / "tiny")
    (repository / "model.safetensors").rename(tmp_path / "weights")
    for name in published:
        if name == "model.safetensors":
            shutil.copy(tmp_path / "weights", repository / name)
        else:
            torch.save({"a": torch.ones(2)}, repository / name)
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with serving_hub(REPO, repository) as endpoint:
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        ended = subprocess.run(
            [sys.executable, "-c", RESOLVE, REPO],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert ended.stdout.split() == [fetched]
