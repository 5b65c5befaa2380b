"""Where `vllm` is Baton: modules that scripts import, commands and servers, the environment, and examples."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from baton.commands import cli_arguments
from tools.vllm_audit import processes
from tools.vllm_audit.checkpoints import generates
from tools.vllm_audit.effects import EFFECTS
from tools.vllm_audit.processes import MODEL_ID, as_vllm, outcomes, run, server, started
from tools.vllm_audit.subjects import MODEL, expect, folder
from tools.vllm_audit.verdict import DifferentError, Group, Probe

_HELPERS: Final = (
    *("NEEDS_HELP", "T", "TypeHint", "TypeHintT", "logger", "_compute_kwargs", "_raise_unsupported_error"),
    *(
        "collection_to_kwargs",
        "contains_type",
        "get_kwargs",
        "get_type",
        "get_type_hints",
        "human_readable_int",
    ),
    *(
        "human_readable_int_or_auto",
        "is_not_builtin",
        "is_online_quantization",
        "is_type",
        "literal_to_kwargs",
    ),
    *("optional_type", "parse_type", "union_dict_and_str"),
)
_MODULES: Final = {
    "assets": "image.ImageAsset",
    "benchmarks": "datasets.BenchmarkDataset",
    "collect_env": "",
    "compilation": "decorators.support_torch_compile",
    "connections": "HTTPConnection",
    "cute_utils": "anything",
    "device_allocator": "cumem.CuMemAllocator",
    "distributed": "get_tensor_model_parallel_world_size",
    "engine": "arg_utils.EngineArgs",
    "entrypoints": "llm.LLM",
    "env_override": "anything",
    "envs": "VLLM_PORT",
    "exceptions": "VLLMValidationError",
    "forward_context": "get_forward_context",
    "inputs": "TextPrompt",
    "ir": "anything",
    "kernels": "anything",
    "logger": "init_logger",
    "logging_utils": "anything",
    "logits_process": "LogitsProcessor",
    "logprobs": "Logprob",
    "lora": "request.LoRARequest",
    "model_executor": "models.ModelRegistry",
    "model_inspection": "anything",
    "models": "anything",
    "multimodal": "MultiModalDataDict",
    "outputs": "RequestOutput",
    "parser": "anything",
    "platforms": "current_platform",
    "plugins": "load_general_plugins",
    "pooling_params": "PoolingParams",
    "profiler": "anything",
    "ray": "anything",
    "reasoning": "ReasoningParserManager",
    "renderers": "anything",
    "sampling_params": "SamplingParams",
    "scalar_type": "scalar_types",
    "sequence": "Logprob",
    "third_party": "anything",
    "tokenizers": "get_tokenizer",
    "tool_parsers": "ToolParserManager",
    "tracing": "anything",
    "transformers_utils": "tokenizer.get_tokenizer",
    "triton_utils": "triton",
    "usage": "usage_lib.UsageContext",
    "utils": "FlexibleArgumentParser",
    "v1": "engine.async_llm.AsyncLLM",
    "version": "__version__",
    "vllm_flash_attn": "flash_attn_varlen_func",
    "config": "VllmConfig",
}
"""Modules of vLLM, and for each a name that scripts import from it or from a module in it."""
_ROOT_NAMES: Final = (("vllm", ""), ("vllm", "LLM"))


def _import_of(module: str) -> tuple[str, str]:
    inner, _, name = _MODULES[module].rpartition(".")
    return ".".join(filter(None, ("vllm", module, inner))), name


_IMPORTS: Final = (
    *(("vllm.engine.arg_utils", one) for one in _HELPERS),
    *(_import_of(one) for one in _MODULES),
    *_ROOT_NAMES,
)
_FILES: Final = (
    *("generate.py", "entrypoint.py", "constructor_defaults.py", "newer_constructor_defaults.py"),
    *("prefix_caching.py", "add_request.py", "abort_request.py", "step_loop.py", "quark.py", "my_model.py"),
    "harness.py",
)


def _in_alias(kind: str, one: Any) -> Probe:
    """An import, or a file, does what it does where `vllm` is vLLM."""

    def probe() -> None:
        asked = _IMPORTS if kind == "imports" else _FILES
        error = outcomes(_IMPORTS, _FILES)[kind][asked.index(one)]
        if error is not None:
            raise ImportError(error)

    return probe


HELPERS: Final = Group(
    "arg_utils, internal names",
    {one: _in_alias("imports", ("vllm.engine.arg_utils", one)) for one in _HELPERS},
    starts_processes=True,
)
MODULES: Final = Group(
    "submodules",
    {f"vllm.{one}": _in_alias("imports", _import_of(one)) for one in _MODULES},
    starts_processes=True,
)

# --- commands and servers ---

_MESSAGES: Final = [{"role": "system", "content": "Context: none"}, {"role": "user", "content": "Hello"}]


def _chat(**more: Any) -> Any:
    body = {"model": "audited", "messages": _MESSAGES, "max_tokens": 4, "temperature": 0.7, **more}
    return server().ask("/v1/chat/completions", body)


def _streams() -> None:
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in _chat(stream=True) if chunk["choices"]]
    expect(any(texts), "no text is streamed")


def _model_of_server() -> Any:
    return server().ask("/v1/models")["data"][0]


def _shown(words: tuple[str, ...]) -> Probe:
    """A command ends well."""
    return lambda: run(as_vllm(*words)) and None


@cache
def _refusal(*words: str) -> str:
    return run(as_vllm(*words))


def _client(command: str) -> Probe:
    return lambda: run(as_vllm("vllm", command, "--url", f"{server().url}/v1", "-q", "Hello")) and None


def _bench_serve() -> None:
    at = ["--base-url", server().url, "--model", "audited", "--tokenizer", MODEL, "--num-prompts", "2"]
    sizes = ["--random-input-len", "8", "--random-output-len", "4", "--dataset-name", "random"]
    run(as_vllm("vllm", "bench", "serve", "--backend", "vllm", *at, *sizes))


def _run_batch() -> None:
    source, output = folder() / "requests.jsonl", folder() / "answers.jsonl"
    body = {"model": MODEL_ID, "prompt": "Hello", "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    source.write_text(json.dumps(line))
    run(as_vllm("vllm", "run-batch", "-i", str(source), "-o", str(output), "--model", MODEL_ID))
    answer = json.loads(output.read_text())
    expect(answer["custom_id"] == "a" and answer["error"] is None, f"it answers {answer}")


def _several_clients() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda _: _chat(stream=True), range(4)))
    expect(all(answers), "a client gets nothing")


def _address() -> None:
    host = cli_arguments.parse(["serve", MODEL]).host
    expect(server().is_on_all_interfaces(), "through as-vllm it listens on one interface too")
    expect(host in (None, "", "0.0.0.0"), f"`baton serve` listens on {host}; vLLM on all interfaces")  # noqa: S104


def _num_engines() -> None:
    workers = server().ask("/debug/cluster")["workers"]
    expect(len(workers) == 1, f"through as-vllm it has {len(workers)} workers")
    args = cli_arguments.parse(["serve", MODEL])
    total = args.prefill_workers + args.decode_workers + args.mixed
    expect(total == 1, f"`baton serve` starts {total} workers")


@cache
def _serve_as_module(name: str) -> None:
    one = started("python", "-m", name, "--model", MODEL_ID)
    try:
        expect(one.ask("/v1/models")["data"], "it has no model")
    finally:
        one.close()


def _module(name: str) -> Probe:
    """A server that is started by its module serves."""
    return lambda: _serve_as_module(name)


def _sizes(command: str, *more: str) -> Probe:
    sizes = [
        "--input-len",
        "8",
        "--output-len",
        "4",
        "--max-model-len",
        "64",
        "--kv-cache-memory-bytes",
        "16M",
    ]
    return _shown(("vllm", "bench", command, "--model", MODEL_ID, *sizes, *more))


COMMANDS: Final = Group(
    "command line and servers",
    {
        "vllm serve MODEL": lambda: expect(_model_of_server(), "no model is served"),
        "serve --max-model-len": lambda: expect(
            _model_of_server()["max_model_len"] == 1024, "another length"
        ),
        "serve --tensor-parallel-size 1": lambda: expect(server(), "it does not start"),
        "OpenAI's endpoints under /v1": lambda: expect(_chat()["choices"], "no choice"),
        "the model has its served name": lambda: expect(_chat()["model"] == "audited", "another name"),
        "AnythingLLM: base URL, model, streaming chat": _streams,
        "vllm chat": _client("chat"),
        "vllm complete": _client("complete"),
        "vllm bench latency": _sizes(
            "latency", "--num-iters", "1", "--num-iters-warmup", "1", "--batch-size", "1"
        ),
        "vllm bench throughput": _sizes("throughput", "--num-prompts", "2"),
        "vllm bench serve": _bench_serve,
        "several clients stream at once": _several_clients,
        "vllm bench sweep serve": lambda: _refusal("vllm", "bench", "sweep", "serve", "--serve-cmd", "x"),
        "serve: address": _address,
        "serve: processes": _num_engines,
        "the command vllm": _shown(("vllm", "--version")),
        "python -m vllm.entrypoints.openai.api_server --model": _module("vllm.entrypoints.openai.api_server"),
        "python -m vllm.entrypoints.api_server": _module("vllm.entrypoints.api_server"),
        "vllm run-batch": _run_batch,
        "vllm bench sweep plot": lambda: _refusal("vllm", "bench", "sweep", "plot", "x"),
        "vllm bench sweep plot_pareto": lambda: _refusal("vllm", "bench", "sweep", "plot_pareto", "x"),
        "vllm bench sweep serve_sla": lambda: _refusal("vllm", "bench", "sweep", "serve_sla"),
        "lm_eval --model vllm": _in_alias("files", "harness.py"),
        "import vllm": _in_alias("imports", ("vllm", "LLM")),
    },
    starts_processes=True,
)

# --- environment ---


def _bound_of_n() -> None:
    call = f"LLM({MODEL_ID!r}, kv_cache_memory_bytes=1 << 24).generate('a', SamplingParams(n=5))"
    script = f"from vllm import LLM, SamplingParams; {call}"
    try:
        run(as_vllm("python", "-c", script), VLLM_MAX_N_SEQUENCES="4")
    except OSError as error:
        expect("n is 5" in str(error), str(error))
    else:
        raise DifferentError("it is not read")


def _is_named(variable: str) -> Probe:
    def probe() -> str:
        log = server().log.read_text()
        expect(variable in log, "not read, and no line of the log says so")
        return "not read; the log says so at the start"

    return probe


ENVIRONMENT: Final = Group(
    "environment",
    {
        "HF_HUB_OFFLINE": EFFECTS["revision"],
        "VLLM_MAX_N_SEQUENCES": _bound_of_n,
        **{variable: _is_named(variable) for variable in processes.UNREAD_VARIABLES},
    },
    starts_processes=True,
)
EXAMPLES: Final = Group(
    "examples, run as they are",
    {
        "a model by its id": _in_alias("files", "generate.py"),
        "LLM from its entry point": _in_alias("files", "entrypoint.py"),
        "the constructor with all its defaults": _in_alias("files", "constructor_defaults.py"),
        "a newer constructor with all its defaults": _in_alias("files", "newer_constructor_defaults.py"),
        "automatic prefix caching": _in_alias("files", "prefix_caching.py"),
        "LLMEngine.add_request": _in_alias("files", "add_request.py"),
        "LLMEngine.abort_request": _in_alias("files", "abort_request.py"),
        "LLMEngine.step": _in_alias("files", "step_loop.py"),
        "the serve command of AnythingLLM": lambda: expect(_model_of_server(), "no model is served"),
        "a quark checkpoint, quantization, kv_cache_dtype": _in_alias("files", "quark.py"),
        "serve a checkpoint of mxfp4, quantization": generates("gpt-oss-mxfp4", quantization="mxfp4"),
        "a model's class with VllmConfig": _in_alias("files", "my_model.py"),
        "lm_eval --model vllm": _in_alias("files", "harness.py"),
        "python -m vllm.entrypoints.openai.api_server": _module("vllm.entrypoints.openai.api_server"),
    },
    starts_processes=True,
)
