"""Models named by a hub's id: fetched, or refused with the reason when the hub or the disk cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hub import serving_hub
from tests.models import make_model

REPO = "somebody/tiny"
LOAD = """
import sys
from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.model_source import resolve_model
from baton_router.text.model_folder import find_model_folder, read_model_folder
find = {"router": find_model_folder, "worker": resolve_model}[sys.argv[1]]
try:
    folder = find(sys.argv[2])
    print("found", read_model_folder(folder).vocab_size, (folder / "model.safetensors").exists())
except InvalidModelError as error:
    print("refused", error)
"""


def load(part: str, endpoint: str, home: Path, *prefix: str, repo: str = REPO) -> str:
    """Load the model in a process of its own: the hub's client reads its settings when imported."""
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    kept = {name: value for name, value in os.environ.items() if name not in proxies}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", LOAD, part, repo],
        env={**kept, **settings, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hub") / "tiny")


@pytest.mark.parametrize(("part", "has_weights"), [("router", False), ("worker", True)])
def test_a_model_is_fetched_from_the_hub(
    part: str, has_weights: bool, repository: Path, tmp_path: Path
) -> None:
    with serving_hub(REPO, repository) as endpoint:
        assert load(part, endpoint, tmp_path) == f"found 512 {has_weights}"


@pytest.mark.parametrize("part", ["router", "worker"])
def test_a_model_that_the_hub_does_not_have_is_refused(part: str, repository: Path, tmp_path: Path) -> None:
    with serving_hub(REPO, repository) as endpoint:
        said = load(part, endpoint, tmp_path, repo="nobody/nothing")
    assert said.startswith("refused model is 'nobody/nothing'")


@pytest.mark.parametrize("part", ["router", "worker"])
def test_a_full_disk_ends_in_an_error_that_says_so(part: str, repository: Path, tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=16k tmpfs {tmp_path} && exec "$@"'
    in_little_space = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    probe = subprocess.run([*in_little_space, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no file system of our own can be mounted: {probe.stderr.decode().strip()}")
    with serving_hub(REPO, repository) as endpoint:
        said = load(part, endpoint, tmp_path, *in_little_space)
    assert said.startswith(f"refused model is {REPO!r}")
    assert "No space left on device" in said
