"""Programs written for vLLM, unchanged, by `baton as-vllm`: servers, commands of clients, examples."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from baton import LLM
from baton.config.engine_args import BUNDLED_MODEL
from tests.e2e.calls import greedy
from tests.e2e.processes import BATON, FLOAT32, KV_CACHE_BYTES, Cluster, serving

AS_VLLM = (*BATON, "as-vllm")
CACHE = ("--kv-cache-memory-bytes", str(KV_CACHE_BYTES))
PROMPT = "The os module"
ENGINE = """
import argparse
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams

def main(args: argparse.Namespace):
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
    requests = [("The os module", SamplingParams(temperature=0, max_tokens=12))]
    request_id = 0
    while requests or engine.has_unfinished_requests():
        if requests:
            prompt, sampling_params = requests.pop(0)
            engine.add_request(str(request_id), prompt, sampling_params)
            request_id += 1
        for output in engine.step():
            assert isinstance(output, RequestOutput)
            if output.finished:
                print(output.outputs[0].text)

if __name__ == "__main__":
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    main(EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args())
"""
PROCESSOR = """
from vllm import LLM, SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

class OneToken(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self.tokens = {{}}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        for index, params, _, _ in batch_update.added if batch_update else ():
            self.tokens[index] = params.extra_args["token"]

    def apply(self, logits):
        for index, token in self.tokens.items():
            logits[index] = float("-inf")
            logits[index, token] = 0.0
        return logits

llm = LLM({model!r}, logits_processors=[OneToken])
output = llm.generate("The os module", SamplingParams(max_tokens=3, extra_args={{"token": 65}}))[0]
print(list(output.outputs[0].token_ids))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The program vllm, which has one engine."""
    folder = tmp_path_factory.mktemp("as_vllm")
    command = (*AS_VLLM, "vllm", "serve", str(BUNDLED_MODEL))
    flags = ("--served-model-name", "docs", *CACHE, *FLOAT32)
    with serving(folder, *flags, command=command) as running:
        yield running


def expected_text(llm: LLM) -> str:
    (output,) = llm.generate(PROMPT, greedy(12, ignore_eos=False), use_tqdm=False)
    return output.outputs[0].text


def completion(cluster: Cluster, model: str) -> str:
    client = OpenAI(base_url=f"http://{reachable(cluster.http_address)}/v1", api_key="none")
    done = client.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0)
    return done.choices[0].text


def reachable(address: str) -> str:
    return address.replace("0.0.0.0", "127.0.0.1")


def run(*command: str) -> str:
    done = subprocess.run(
        (*AS_VLLM, *command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vllm_serve_has_one_engine_and_http_at_all_interfaces(server: Cluster, llm: LLM) -> None:
    assert server.http_address.startswith("0.0.0.0:")
    assert server.address.startswith("127.0.0.1:")
    assert [worker.role for worker in server.info().workers] == ["mixed"]
    assert completion(server, "docs") == expected_text(llm)


def test_vllm_complete_and_bench_serve_ask_a_server(server: Cluster, llm: LLM) -> None:
    at = ("--address", server.address)
    told = run("vllm", "complete", PROMPT, "--temperature", "0", "--max-tokens", "12", *at)
    assert expected_text(llm) in told
    sizes = ("--random-input-len", "8", "--random-output-len", "4", "--num-prompts", "2")
    url = ("--base-url", f"http://{reachable(server.http_address)}", "--model", "docs")
    told = run(
        "vllm", "bench", "serve", "--dataset-name", "random", *sizes, *url, "--tokenizer", BUNDLED_MODEL
    )
    assert "Successful requests" in told


@pytest.mark.exhaustive
def test_the_engine_example_steps(tmp_path: Path, llm: LLM) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    told = run("python", str(tmp_path / "engine.py"), "--model", BUNDLED_MODEL, "--dtype", "float32")
    assert told == expected_text(llm) + "\n"


@pytest.mark.exhaustive
def test_the_example_of_a_logits_processor_chooses_tokens(tmp_path: Path) -> None:
    (tmp_path / "processor.py").write_text(PROCESSOR.format(model=BUNDLED_MODEL))
    assert run("python", str(tmp_path / "processor.py")) == "[65, 65, 65]\n"
