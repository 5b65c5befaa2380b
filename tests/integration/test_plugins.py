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

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from baton import LLM, SamplingParams
from tests.integration.tiny_llm import PROMPT

with LLM(sys.argv[1], kv_cache_memory_bytes=4 << 20, **eval(sys.argv[2])) as llm:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    print(llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids[0])
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


def run(model: Path, plugins: Path, options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(plugins), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), options],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("baton.plugins", "{}"),
        ("vllm.general_plugins", "{}"),
        ("baton.plugins", "{'prefill_workers': 1, 'decode_workers': 1}"),
    ],
)
def test_a_model_of_a_plugin_runs_here_and_in_workers(
    folder: Path, llama_token: int, tmp_path: Path, group: str, options: str
) -> None:
    installed(tmp_path, group, "tests.registered_model:register")
    done = run(folder, tmp_path, options)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == llama_token + 1


def test_plugins_are_chosen_by_name(folder: Path, llama_token: int, tmp_path: Path) -> None:
    installed(tmp_path, "baton.plugins", "tests.registered_model:register")
    done = run(folder, tmp_path, "{}", VLLM_PLUGINS="other")
    assert "architectures is 'ShiftedForCausalLM'" in done.stderr


def test_a_plugin_of_baton_s_that_fails_is_named(folder: Path, llama_token: int, tmp_path: Path) -> None:
    installed(tmp_path, "baton.plugins", "tests.nowhere:register")
    done = run(folder, tmp_path, "{}")
    assert "plugin shifted (tests.nowhere:register) fails with ModuleNotFoundError" in done.stderr
    other = tmp_path / "other"
    installed(other, "vllm.general_plugins", "tests.nowhere:register")
    done = run(folder, other, "{}")
    assert "plugin shifted (tests.nowhere:register) is left out" in done.stderr
    assert "architectures is 'ShiftedForCausalLM'" in done.stderr
