"""Tools written for vLLM, unchanged, by `baton as-vllm`: `make tools-check` installs and runs them."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from baton import LLM, SamplingParams
from baton.config.engine_args import BUNDLED_MODEL
from tests.e2e.processes import KV_CACHE_BYTES, serving
from tests.packaging.installed import ROOT, Installed, make_environment

pytestmark = [
    pytest.mark.skipif("BATON_TOOLS_CHECK" not in os.environ, reason="make tools-check runs it"),
    pytest.mark.timeout(900),
]
TOOLS: Final = ("lm-eval", "langchain-community", "llama-index-llms-vllm", "guidellm")
HEAVY: Final = ("torch", "triton", "vllm")
"""Packages that the environment of the tests has already, or that Baton stands for."""
PROMPT: Final = "The os module"
NUM_TOKENS: Final = 8
WITHIN_S: Final = 400.0
LANGCHAIN: Final = f"""
from langchain_community.llms import VLLM

llm = VLLM(
    model={BUNDLED_MODEL!r}, trust_remote_code=True, max_new_tokens={NUM_TOKENS}, top_k=10, top_p=0.95,
    temperature=0, dtype="float32", vllm_kwargs={{"kv_cache_memory_bytes": {KV_CACHE_BYTES}}},
)
print(repr(llm.invoke({PROMPT!r})))
"""
LLAMA_INDEX: Final = f"""
from llama_index.llms.vllm import Vllm

llm = Vllm(
    model={BUNDLED_MODEL!r}, max_new_tokens={NUM_TOKENS}, temperature=0, dtype="float32",
    vllm_kwargs={{"kv_cache_memory_bytes": {KV_CACHE_BYTES}}},
)
print(repr(llm.complete({PROMPT!r}).text))
"""
CHOICES: Final = {
    "task": "choices",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
WORDS: Final = {
    "task": "words",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{continued}}",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": NUM_TOKENS, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
"""Tasks of lm_eval, whose files are YAML and so may be JSON."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The tools in an environment of their own, which also sees that of the tests."""
    folder = tmp_path_factory.mktemp("tools")
    installed = make_environment(folder / "venv")
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "tree.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (folder / "excluded.txt").write_text("\n".join(HEAVY))
    pins = ("--constraint", str(ROOT / "constraints.txt"), "--excludes", str(folder / "excluded.txt"))
    installed.install(*pins, *TOOLS)
    return installed


@pytest.fixture(scope="module")
def text() -> str:
    """The greedy continuation of the prompt."""
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    return LLM(dtype="float32").generate(PROMPT, greedy, use_tqdm=False)[0].outputs[0].text


def as_vllm(tools: Installed, *command: str) -> str:
    """Return what a command prints in whose processes `vllm` is Baton; no hub is asked."""
    offline = ("env", "HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1")
    done = tools.run(*offline, str(tools.python), "-m", "baton", "as-vllm", *command, within_s=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "more",
    [
        ("dtype=float32", "--batch_size", "auto"),
        (
            "dtype=float32,tensor_parallel_size=1,gpu_memory_utilization=0.5,max_model_len=512",
            "--batch_size",
            "2",
        ),
    ],
    ids=["auto", "options"],
)
def test_lm_eval_measures_a_model(tools: Installed, text: str, tmp_path: Path, more: tuple[str, ...]) -> None:
    asked = {"question": PROMPT, "choices": [text, " bananas"], "answer": 0, "continued": text}
    (tmp_path / "docs.jsonl").write_text(json.dumps(asked))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.jsonl")}}}
    for task in (CHOICES, WORDS):
        (tmp_path / f"{task['task']}.yaml").write_text(json.dumps({**task, **data, "test_split": "test"}))
    model_args = f"pretrained={BUNDLED_MODEL},kv_cache_memory_bytes={KV_CACHE_BYTES},{more[0]}"
    tasks = (
        "--tasks",
        "choices,words",
        "--include_path",
        str(tmp_path),
        "--output_path",
        str(tmp_path / "out"),
    )
    as_vllm(tools, "lm_eval", "--model", "vllm", "--model_args", model_args, *more[1:], *tasks)
    results = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())["results"]
    assert results["choices"]["acc,none"] == 1.0
    assert results["words"]["exact_match,none"] == 1.0


@pytest.mark.parametrize("program", [LANGCHAIN, LLAMA_INDEX], ids=["langchain", "llama-index"])
def test_classes_of_frameworks_generate(tools: Installed, text: str, tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(program)
    assert as_vllm(tools, "python", str(tmp_path / "program.py")) == f"{text!r}\n"


def test_guidellm_measures_a_server(tools: Installed, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "baton", "as-vllm", "vllm", "serve")
    flags = ("--served-model-name", "docs", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES))
    with serving(tmp_path / "server", *flags, command=command) as cluster:
        port = cluster.http_address.rpartition(":")[2]
        backend = f"kind=openai_http,target=http://127.0.0.1:{port},model=docs"
        assert num_measured(tools, backend, tmp_path) == 3


def test_guidellm_measures_an_engine(tools: Installed, tmp_path: Path) -> None:
    assert num_measured(tools, f"kind=vllm_python,model={BUNDLED_MODEL}", tmp_path) == 3


def num_measured(tools: Installed, backend: str, folder: Path) -> int:
    """Return the number of requests that succeed."""
    asked = {
        "backend": backend,
        "tokenizer": f"kind=hf_auto,model={BUNDLED_MODEL}",
        "data": "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
        "profile": "kind=synchronous",
        "constraint": "kind=max_requests,count=3",
        "output": f"kind=json,path={folder / 'report.json'}",
    }
    flags = [word for name, value in asked.items() for word in (f"--{name}", value)]
    as_vllm(tools, "guidellm", "run", *flags, "--disable-console-interactive")
    (benchmark,) = json.loads((folder / "report.json").read_text())["benchmarks"]
    return int(benchmark["metrics"]["request_totals"]["successful"])
