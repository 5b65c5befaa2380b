"""Plugins of installed packages register models in every process that loads one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton import LLM
from tests.integration.tiny_llm import PROMPT, greedy
from tests.models import make_model
from tests.registered_model import ARCHITECTURE
from tests.tiers import exhaustive

ROOT = Path(__file__).parents[2]
GENERATES = """
import sys
from baton import LLM, SamplingParams
from tests.integration.tiny_llm import PROMPT

with LLM(sys.argv[1], kv_cache_memory_bytes=4 << 20, **eval(sys.argv[2])) as llm:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    print(llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids[0])
"""
LOADS = """
from baton import ModelRegistry
from baton.processes.plugins import load_plugins

load_plugins()
load_plugins()
print("ShiftedForCausalLM" in ModelRegistry.get_supported_archs())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("plugins") / "model", "llama")


@pytest.fixture(scope="module")
def llama_token(folder: Path) -> int:
    with LLM(str(folder), kv_cache_memory_bytes=4 << 20) as llm:
        token_id = llm.generate(PROMPT, greedy(1), use_tqdm=False)[0].outputs[0].token_ids[0]
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [ARCHITECTURE]}))
    return token_id


def installed(folder: Path, group: str, value: str) -> None:
    """Lay out what installers write for a package with one entry point."""
    package = folder / "some_plugin-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{group}]\nshifted = {value}\n")


def run(plugins: Path, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(plugins), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.exhaustive
def test_a_model_of_a_plugin_runs_here_and_in_workers(folder: Path, llama_token: int, tmp_path: Path) -> None:
    options = "{'prefill_workers': 1, 'decode_workers': 1}"
    installed(tmp_path, "baton.plugins", "tests.registered_model:register")
    done = run(tmp_path, GENERATES, str(folder), options)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == llama_token + 1


@pytest.mark.parametrize(
    ("group", "chosen", "is_called"),
    [
        exhaustive("baton.plugins", {}, True),
        ("vllm.general_plugins", {"VLLM_PLUGINS": "a,shifted"}, True),
        exhaustive("baton.plugins", {"VLLM_PLUGINS": ""}, False),
    ],
)
def test_plugins_of_both_groups_are_called_unless_others_are_chosen(
    tmp_path: Path, group: str, chosen: dict[str, str], is_called: bool
) -> None:
    installed(tmp_path, group, "tests.registered_model:register")
    done = run(tmp_path, LOADS, **chosen)
    assert done.stdout.strip() == str(is_called), done.stderr


def test_plugins_of_another_vllm_are_not_called(tmp_path: Path) -> None:
    installed(tmp_path, "vllm.general_plugins", "tests.registered_model:register")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise SystemExit('loaded')")
    assert run(tmp_path, LOADS).stdout.strip() == "False"


def test_a_plugin_that_fails_is_named(tmp_path: Path) -> None:
    installed(tmp_path / "ours", "baton.plugins", "tests.nowhere:register")
    done = run(tmp_path / "ours", LOADS)
    assert "plugin shifted (tests.nowhere:register) fails with ModuleNotFoundError" in done.stderr
    installed(tmp_path / "theirs", "vllm.general_plugins", "tests.nowhere:register")
    done = run(tmp_path / "theirs", LOADS)
    assert "plugin shifted (tests.nowhere:register) is left out" in done.stderr
    assert done.stdout.strip() == "False"
