"""`baton serve`, asked through gRPC: the answers of `LLM`, computed by two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton import LLM, SamplingParams
from baton.config.engine_args import BUNDLED_MODEL, BUNDLED_MODEL_NAME
from baton_engine.models.registry import read_model_config
from baton_proto.v1 import baton_pb2 as pb
from baton_router.text.chat_template import Conversation
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import BATON, Cluster

CLIENT = Path(__file__).parents[2] / "examples" / "client.py"
BLOCK_SIZE = 32
BLOCK_BYTES = read_model_config(Path(BUNDLED_MODEL)).kv_spec(BLOCK_SIZE, "float32").block_bytes
TEXT = "import os\n\n# The path of the file, and the name of its folder:\n"


@pytest.mark.parametrize("num_tokens", [2, 31, 32, 33, 700])
def test_greedy_tokens_are_those_of_one_process(cluster: Cluster, llm: LLM, num_tokens: int) -> None:
    prompt, params = draw_prompt(num_tokens, seed=num_tokens), greedy(24)
    outputs, finished = answer(cluster.stub.Generate(ask(prompt, params)))
    (expected,) = llm.generate(prompt, params, use_tqdm=False)
    assert outputs == expected.outputs
    assert finished.usage == pb.Usage(prompt_tokens=num_tokens, completion_tokens=24)
    timings = finished.timings
    assert (timings.prefill_worker, timings.decode_worker) == ("prefill-0", "decode-1")
    assert timings.transferred_bytes == -(-num_tokens // BLOCK_SIZE) * BLOCK_BYTES
    assert 0 < timings.prefill_s < timings.first_token_s < timings.total_s
    assert 0 < timings.transfer_s < timings.total_s
    assert timings.per_token_s > 0


def test_a_repeated_prompt_is_neither_computed_nor_transferred_again(cluster: Cluster) -> None:
    request = ask(draw_prompt(300, seed=1), greedy(8))
    first, _ = answer(cluster.stub.Generate(request))
    again, finished = answer(cluster.stub.Generate(request))
    assert again == first
    assert finished.usage == pb.Usage(prompt_tokens=300, completion_tokens=8, cached_tokens=288)
    assert finished.timings.transferred_bytes == BLOCK_BYTES


def test_a_seed_gives_each_sequence_the_tokens_of_one_process(cluster: Cluster, llm: LLM) -> None:
    prompt = draw_prompt(75, seed=2)
    params = SamplingParams(n=2, seed=11, temperature=1.0, top_p=0.95, max_tokens=20, ignore_eos=True)
    outputs, finished = answer(cluster.stub.Generate(ask(prompt, params)))
    (expected,) = llm.generate(prompt, params, use_tqdm=False)
    assert outputs == expected.outputs
    assert outputs[0].token_ids != outputs[1].token_ids
    assert (finished.seed, finished.usage.completion_tokens) == (11, 40)


def test_the_router_goes_before_the_workers(cluster: Cluster) -> None:
    (router,) = cluster.pids_of("baton router")
    workers = (*cluster.pids_of("baton prefill-worker"), *cluster.pids_of("baton decode-worker"))
    own = os.getpriority(os.PRIO_PROCESS, router)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in workers] == [min(19, own + 5)] * 2


def test_a_stop_string_cuts_the_text(cluster: Cluster, llm: LLM) -> None:
    (whole,) = llm.generate(TEXT, greedy(40), use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[len(text) // 2 :][:3]
    params = greedy(40, stop=(stop,))
    outputs, finished = answer(cluster.stub.Generate(ask(TEXT, params)))
    (expected,) = llm.generate(TEXT, params, use_tqdm=False)
    assert outputs == expected.outputs
    assert outputs[0].text == text[: text.index(stop)]
    assert (outputs[0].finish_reason, outputs[0].stop_reason) == ("stop", stop)
    assert finished.usage.completion_tokens == len(outputs[0].token_ids)


def test_a_conversation_is_rendered_with_the_models_template(cluster: Cluster, llm: LLM) -> None:
    messages = (
        {"role": "system", "content": "Answer shortly."},
        {"role": "user", "content": "What is JSON?"},
    )
    prompt = Tokenizer(read_model_folder(Path(BUNDLED_MODEL))).encode_prompt(Conversation(messages=messages))
    request = ask("", greedy(24))
    request.chat.messages.extend(pb.ChatMessage(**message) for message in messages)
    outputs, finished = answer(cluster.stub.Generate(request))
    assert outputs == llm.generate(prompt, greedy(24), use_tqdm=False)[0].outputs
    assert finished.usage.prompt_tokens == len(prompt)


def test_bad_requests_name_their_field_and_disturb_no_other(cluster: Cluster, llm: LLM) -> None:
    prompt, params = draw_prompt(40, seed=3), greedy(60)
    running = cluster.stub.Generate(ask(prompt, params))
    events = [next(running)]
    for begin, request in bad_requests(cluster.info()).items():
        with pytest.raises(grpc.RpcError) as raised:
            list(cluster.stub.Generate(request))
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details().startswith(begin)
        assert "; allowed: " in raised.value.details()
        events.append(next(running))
    outputs, _ = answer([*events, *running])
    assert outputs == llm.generate(prompt, params, use_tqdm=False)[0].outputs


def bad_requests(info: pb.ModelInfo) -> dict[str, pb.GenerateRequest]:
    """Requests by the beginning of their error's text."""
    size, limit = info.vocab_size, info.max_model_len
    return {
        "text is ''; allowed: at least one character": ask("", greedy(1)),
        "token_ids is []": pb.GenerateRequest(token_ids=pb.TokenIds()),
        f"token_ids is {size}; allowed: token ids from 0 to {size - 1}": ask([5, size], greedy(1)),
        f"token_ids is '{limit} tokens'; allowed: 1 to {limit - 1} tokens": ask([5] * limit, greedy(1)),
        "prompt is None": pb.GenerateRequest(),
        "chat is []": pb.GenerateRequest(chat=pb.Chat()),
        "role is 'robot'": pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="robot")])),
        "request_id is ": pb.GenerateRequest(text="a", request_id="r" * 129),
        "n is 0": bad_parameter(n=0),
        "temperature is -1.0": bad_parameter(temperature=-1.0),
        "temperature is nan": bad_parameter(temperature=float("nan")),
        "top_p is 0.0": bad_parameter(top_p=0.0),
        "top_k is -2": bad_parameter(top_k=-2),
        "min_p is 1.5": bad_parameter(min_p=1.5),
        "max_tokens is 0": bad_parameter(max_tokens=0),
        "stop is ''": bad_parameter(stop=[""]),
        f"stop_token_ids is {size}": bad_parameter(stop_token_ids=[size]),
    }


def bad_parameter(**params: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(**params))


def test_a_deadline_of_the_client_ends_the_work_and_frees_the_blocks(cluster: Cluster) -> None:
    call = cluster.stub.Generate(ask(draw_prompt(200, seed=4), greedy(1500)), timeout=0.5)
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    cluster.wait_until_idle()


def test_the_command_prints_each_completion_and_where_it_ran(cluster: Cluster, llm: LLM) -> None:
    flags = ("--address", cluster.address, "--temperature", "0", "--max-tokens", "16")
    prompts = [TEXT, "def read(path):"]
    printed = run([*BATON, "complete", *flags, *prompts])
    expected = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16), use_tqdm=False)
    for prompt, output in zip(prompts, expected, strict=True):
        text = f"> {prompt}\n{output.outputs[0].text}\n[prefill-0 > decode-1: "
        assert text in printed
        assert f"{len(output.prompt_token_ids)} prompt tokens" in printed.partition(text)[2]


def test_the_command_prints_several_sequences_one_after_the_other(cluster: Cluster, llm: LLM) -> None:
    flags = ("--n", "3", "--seed", "4", "--temperature", "0.8", "--max-tokens", "12")
    printed = run([*BATON, "complete", "--address", cluster.address, *flags, TEXT])
    params = SamplingParams(n=3, seed=4, temperature=0.8, max_tokens=12)
    (expected,) = llm.generate(TEXT, params, use_tqdm=False)
    first, second, third = (output.text for output in expected.outputs)
    assert printed.startswith(f"> {TEXT}\n{first}\n[1] {second}\n[2] {third}\n[prefill-0 > decode-1: ")


def test_the_example_client_prints_text_and_timings(cluster: Cluster) -> None:
    printed = run([sys.executable, str(CLIENT), TEXT, "--address", cluster.address, "--max-tokens", "8"])
    text, _, timings = printed.rstrip("\n").rpartition("\n")
    assert text
    assert re.match(r"\d+ prompt tokens \(\d+ cached\), [1-8] new; first token [\d.]+ ms", timings)


def run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_no_folder_of_the_bundled_model_is_told(cluster: Cluster) -> None:
    folder = str(Path(BUNDLED_MODEL).parent)
    (model,) = httpx.get(f"http://{cluster.http_address}/v1/models").json()["data"]
    assert (model["id"], model["root"]) == (BUNDLED_MODEL_NAME, BUNDLED_MODEL_NAME)
    metrics = httpx.get(f"http://{cluster.http_address}/metrics").text
    assert f'model_name="{BUNDLED_MODEL_NAME}"' in metrics
    for told in (metrics, cluster.log.read_text()):
        assert folder not in told


def test_the_model_and_its_workers_are_described(cluster: Cluster, llm: LLM) -> None:
    info = cluster.info()
    assert (info.model, info.is_ready) == (BUNDLED_MODEL_NAME, True)
    assert llm.llm_engine.model_config.max_model_len == info.max_model_len
    assert "LlamaForCausalLM" in repr(llm)
    workers = {(worker.worker_id, worker.role) for worker in info.workers}
    assert workers == {("prefill-0", "prefill"), ("decode-1", "decode")}
    cluster.wait_until_idle()
    health = health_pb2_grpc.HealthStub(cluster.channel)
    reply = health.Check(health_pb2.HealthCheckRequest(), timeout=5.0)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
