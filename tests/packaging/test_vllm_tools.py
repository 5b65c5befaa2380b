"""Tools written for vLLM, unchanged, by `baton as-vllm`: `make tools-check` installs and runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
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
TOOLS: Final = (
    *("lm-eval", "langchain-community", "langchain-openai", "guidellm"),
    *("llama-index-llms-vllm", "llama-index-embeddings-openai-like"),
)
BERT: Final = ROOT / "tests" / "fixtures" / "pooling" / "bert-mean-dense-normalize"
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
QUESTIONS: Final = tuple(f"What does the {name} module do?" for name in ("os", "sys", "re", "math", "json"))
SERVED_NAME: Final = "docs"
CHAT_OPENAI: Final = f"""
import json, os
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model={SERVED_NAME!r}, base_url=os.environ["URL"] + "/v1", api_key="EMPTY", max_retries=0,
    temperature=0, max_tokens={NUM_TOKENS},
)
questions = {QUESTIONS!r}
answers = {{
    "invoke": [chat.invoke(one) for one in questions],
    "batch": chat.batch(questions, return_exceptions=True),
    "stream": [sum(chunks[1:], chunks[0]) for chunks in ([*chat.stream(one)] for one in questions)],
}}
print(json.dumps({{way: [one.content for one in found] for way, found in answers.items()}}))
"""
VLLM_OPENAI: Final = f"""
import json, os
from langchain_community.llms import VLLMOpenAI

llm = VLLMOpenAI(
    openai_api_key="EMPTY", openai_api_base=os.environ["URL"] + "/v1", model_name={SERVED_NAME!r},
    temperature=0, max_tokens={NUM_TOKENS},
)
print(json.dumps(llm.batch([{PROMPT!r}] * 5)))
"""
LLAMA_INDEX: Final = f"""
from llama_index.llms.vllm import Vllm

llm = Vllm(
    model={BUNDLED_MODEL!r}, max_new_tokens={NUM_TOKENS}, temperature=0, dtype="float32",
    vllm_kwargs={{"kv_cache_memory_bytes": {KV_CACHE_BYTES}}},
)
print(repr(llm.complete({PROMPT!r}).text))
"""
TEXTS: Final = ("The os module", "the sys module does it", "re")
EMBEDDING_MODEL: Final = "llama-index-bert"
EMBEDDINGS: Final = f"""
import json, os
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

model = OpenAILikeEmbedding(
    model_name={EMBEDDING_MODEL!r}, api_base=os.environ["URL"] + "/v1", api_key="EMPTY", embed_batch_size=2
)
texts = {TEXTS!r}
batch = model.get_text_embedding_batch(list(texts))
print(json.dumps([batch, [model.get_query_embedding(one) for one in texts]]))
"""
BENCH: Final = {
    "completions": ("openai", "/v1/completions"),
    "chats": ("openai-chat", "/v1/chat/completions"),
}
NUM_MEASURED: Final = 20
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
def peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program that runs commands of an installed vLLM; BATON_PEER may name the folder where it is."""
    folder = os.environ.get("BATON_PEER") or str(tmp_path_factory.mktemp("peer"))
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(("bash", "bench/peer/make_environment.sh", folder), cwd=ROOT, env=environment, check=True)
    return f"{folder}/bin/peer"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that is started as vLLM's."""
    command = (sys.executable, "-m", "baton", "as-vllm", "vllm", "serve")
    flags = ("--served-model-name", SERVED_NAME, "--kv-cache-memory-bytes", str(KV_CACHE_BYTES))
    folder = tmp_path_factory.mktemp("served") / "server"
    with serving(folder, *flags, "--dtype", "float32", command=command) as cluster:
        yield f"http://127.0.0.1:{cluster.http_address.rpartition(':')[2]}"


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


def test_chats_of_langchain_are_answered_by_a_server(
    tools: Installed, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = [[{"role": "user", "content": one}] for one in QUESTIONS]
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    outputs = LLM(dtype="float32").chat(conversations, greedy, use_tqdm=False)
    expected = [output.outputs[0].text for output in outputs]
    assert all(expected)
    monkeypatch.setenv("URL", url)
    (tmp_path / "program.py").write_text(CHAT_OPENAI)
    answers = json.loads(as_vllm(tools, "python", str(tmp_path / "program.py")))
    assert answers == dict.fromkeys(("invoke", "batch", "stream"), expected)


def test_completions_of_langchain_are_answered_by_a_server(
    tools: Installed, url: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URL", url)
    (tmp_path / "program.py").write_text(VLLM_OPENAI)
    assert json.loads(as_vllm(tools, "python", str(tmp_path / "program.py"))) == [text] * 5


def test_embeddings_of_llama_index_are_those_of_one_process(
    tools: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(str(BERT), runner="pooling", dtype="float32", kv_cache_memory_bytes=2**24) as llm:
        expected = [output.outputs.embedding for output in llm.embed(list(TEXTS), use_tqdm=False)]
    flags = (str(BERT), "--runner", "pooling", "--served-model-name", EMBEDDING_MODEL, "--dtype", "float32")
    with serving(tmp_path / "server", *flags, "--decode-workers", "0") as cluster:
        monkeypatch.setenv("URL", f"http://{cluster.http_address}")
        (tmp_path / "program.py").write_text(EMBEDDINGS)
        batch, single = json.loads(as_vllm(tools, "python", str(tmp_path / "program.py")))
    for found in (batch, single):
        assert [pytest.approx(row, abs=1e-6) for row in expected] == found


def test_guidellm_measures_a_server(tools: Installed, url: str, tmp_path: Path) -> None:
    assert num_measured(tools, f"kind=openai_http,target={url},model={SERVED_NAME}", tmp_path) == 3


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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", BENCH)
@pytest.mark.parametrize("whose", ["vllm", "as-vllm"])
def test_vllm_bench_serve_measures_a_server(
    request: pytest.FixtureRequest, tools: Installed, url: str, tmp_path: Path, whose: str, kind: str
) -> None:
    backend, endpoint = BENCH[kind]
    asked = {
        "backend": backend,
        "endpoint": endpoint,
        "base-url": url,
        "model": SERVED_NAME,
        "tokenizer": BUNDLED_MODEL,
        "dataset-name": "random",
        "random-input-len": 16,
        "random-output-len": NUM_TOKENS,
        "num-prompts": NUM_MEASURED,
        "request-rate": 10,
        "max-concurrency": 8,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "result-dir": tmp_path,
        "result-filename": "result.json",
    }
    flags = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    command = ("vllm", "bench", "serve", *flags, "--ignore-eos", "--save-result")
    if whose == "vllm":
        done = tools.run(request.getfixturevalue("peer"), *command, within_s=WITHIN_S)
        assert done.returncode == 0, done.stderr
    else:
        as_vllm(tools, *command)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (NUM_MEASURED, 0)
    assert result["total_output_tokens"] == NUM_MEASURED * NUM_TOKENS
