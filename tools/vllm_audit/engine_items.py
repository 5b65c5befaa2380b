"""`LLMEngine`, the methods of `EngineArgs`, the engine's parts, prefix caching and quantized checkpoints."""

from __future__ import annotations

import argparse
import inspect
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final

import baton
from baton import EngineArgs, SamplingParams
from baton_core.errors import InvalidModelError
from tools.vllm_audit.checkpoints import generates
from tools.vllm_audit.effects import EFFECTS
from tools.vllm_audit.engine_arguments import VALUES
from tools.vllm_audit.probes import all_of, attribute, field, gives, holds, imported, raises
from tools.vllm_audit.subjects import (
    ADAPTER,
    KV_BYTES,
    MODEL,
    NO_ADAPTERS,
    PROMPT,
    SMALL,
    engine,
    expect,
    generated,
    llm,
    pooling,
)
from tools.vllm_audit.verdict import DifferentError, Group, Probe

_CONFIGS: Final = (
    *("model_config", "cache_config", "parallel_config", "scheduler_config", "device_config", "load_config"),
    *(
        "lora_config",
        "speculative_config",
        "decoding_config",
        "observability_config",
        "prompt_adapter_config",
    ),
)
_CONSTRUCTOR: Final = (
    *("executor_class", "log_stats", "usage_context", "stat_loggers", "input_registry", "use_cached_outputs"),
)
_ONE: Final = SamplingParams(temperature=0.0, max_tokens=2)


def _constructor(name: str) -> Probe:
    """An engine is made of its configuration's parts, or the parameter is refused at once."""

    def probe() -> str:
        error = _error_of_parts()
        if error is not None:
            with suppress(InvalidModelError):
                baton.LLMEngine(EngineArgs(model="/nonexistent"), **{name: None})
            raise error
        return "an engine is made of it"

    return probe


@cache
def _error_of_parts() -> Exception | None:
    """Return the error of an engine that is made of all parts at once."""
    try:
        config = EngineArgs(model=MODEL, kv_cache_memory_bytes=KV_BYTES, **SMALL).create_engine_config()
        parts = {name: getattr(config, name, None) for name in _CONFIGS}
        baton.LLMEngine(**parts, **dict.fromkeys(_CONSTRUCTOR)).close()
    except Exception as error:
        return error
    return None


def _run(request_id: str = "audited", prompt: Any = PROMPT, params: Any = _ONE, **more: Any) -> Any:
    """The last output of a request."""
    engine().add_request(request_id, prompt, params, **more)
    return _stepped()


def _stepped() -> Any:
    outputs = []
    while engine().has_unfinished_requests():
        outputs += engine().step()
    expect(outputs and outputs[-1].finished, "no finished output comes")
    return outputs[-1]


def _takes(**more: Any) -> Probe:
    def probe() -> None:
        expect(_run(**more).outputs[0].token_ids, "no tokens")

    return probe


def _aborts(ids: Any) -> Probe:
    def probe() -> None:
        engine().add_request("audited", PROMPT, _ONE)
        engine().abort_request(ids)
        expect(not engine().has_unfinished_requests(), "it goes on")

    return probe


def _duplicates() -> object:
    engine().add_request("audited", PROMPT, _ONE)
    try:
        return raises(lambda: engine().add_request("audited", PROMPT, _ONE), "audited")()
    finally:
        engine().abort_request("audited")


def _falsy_id() -> str:
    try:
        engine().add_request(0, PROMPT, _ONE)
    except TypeError as error:
        return str(error)
    _stepped()
    raise DifferentError("an id of 0 is replaced by one that is chosen; vLLM raises TypeError")


def _arrives() -> None:
    metrics = _run(arrival_time=1.5).metrics
    expect(metrics.arrival_time == 1.5, f"arrival_time is {metrics.arrival_time}")


def _unfinished() -> None:
    engine().add_request("audited", PROMPT, _ONE)
    expect(engine().has_unfinished_requests(), "an open request does not count")
    _stepped()
    expect(not engine().has_unfinished_requests(), "a finished request counts")


def _from_engine_args(**more: Any) -> Probe:
    def probe() -> None:
        if not more:
            expect(isinstance(engine(), baton.LLMEngine), "another class")
            return
        parameters = inspect.signature(baton.LLMEngine.from_engine_args).parameters
        if not more.keys() <= parameters.keys():
            baton.LLMEngine.from_engine_args(EngineArgs(model=MODEL), **more).close()

    return probe


def _logs_stats() -> None:
    engine().do_log_stats(None, None, None, None)


def _virtual_engine() -> None:
    expect(engine().has_unfinished_requests_for_virtual_engine(0) is False, "it has requests")


def _pooling_params() -> None:
    pooling_engine = pooling().llm_engine
    pooling_engine.add_request("audited", PROMPT, baton.PoolingParams())
    outputs = [output for _ in range(3) for output in pooling_engine.step()]
    expect([one.request_id for one in outputs] == ["audited"], f"it returns {outputs!r}")


def _inputs() -> None:
    engine().add_request("audited", inputs=PROMPT, params=_ONE)
    _stepped()


ENGINE: Final = Group(
    "LLMEngine",
    {
        **{f"{one} (constructor)": _constructor(one) for one in (*_CONFIGS, *_CONSTRUCTOR)},
        "DO_VALIDATE_OUTPUT": lambda: baton.LLMEngine.DO_VALIDATE_OUTPUT and None,
        "has_unfinished_requests_for_virtual_engine()": _virtual_engine,
        "add_request(inputs=)": _inputs,
        "add_request(prompt_adapter_request=)": lambda: _run(prompt_adapter_request=object()),
        "add_request(params=PoolingParams)": _pooling_params,
        "from_engine_args(usage_context=)": _from_engine_args(usage_context=None),
        "from_engine_args(stat_loggers=)": _from_engine_args(stat_loggers=None),
        "do_log_stats(scheduler_outputs, model_output, finished_before, skip)": _logs_stats,
        "abort_request(str)": _aborts("audited"),
        "abort_request(iterable)": _aborts(["audited"]),
        "add_request": _takes(),
        "add_request(request_id)": gives(lambda: _run("named").request_id, "named"),
        "add_request(prompt)": gives(lambda: _run(prompt=[5, 6]).prompt_token_ids, [5, 6]),
        "add_request(params)": gives(lambda: len(_run(params=_ONE).outputs[0].token_ids), 2),
        "add_request(arrival_time)": _arrives,
        "add_request(priority)": _takes(priority=0),
        "ids of open requests are refused": _duplicates,
        "do_log_stats()": lambda: engine().do_log_stats(),
        "from_engine_args(engine_args)": _from_engine_args(),
        "has_unfinished_requests()": _unfinished,
        "step() -> list[RequestOutput]": holds(lambda: isinstance(_run(), baton.RequestOutput)),
        "example: abort_request": _aborts("audited"),
        "example: add_request": _takes(arrival_time=0.0),
        "example: step loop": _takes(),
        "add_request(lora_request=)": raises(lambda: _run(lora_request=ADAPTER), NO_ADAPTERS),
        "add_request(trace_headers=)": _takes(trace_headers={"traceparent": "x"}),
        "add_request(0, ...) raises TypeError": _falsy_id,
    },
)


def _args() -> EngineArgs:
    return EngineArgs(model=MODEL)


def _parsed(*flags: str) -> EngineArgs:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser(exit_on_error=False))
    return EngineArgs.from_cli_args(parser.parse_args(["--model", MODEL, *flags]))


def _config(**more: Any) -> None:
    config = _args().create_engine_config(**more)
    found = (
        config.model_config.max_model_len,
        config.cache_config.block_size,
        config.parallel_config.world_size,
    )
    expect(all(isinstance(one, int) for one in found), f"it holds {found}")


_INTERNAL: Final = (
    *("create_speculative_config", "create_model_config", "create_load_config", "get_batch_defaults"),
    *("validate_tensorizer_args", "_check_feature_supported", "_get_min_mm_batched_tokens"),
    *(
        "_set_default_chunked_prefill_and_prefix_caching_args",
        "_set_default_max_num_seqs_and_batched_tokens_args",
    ),
)
_NUMBERS: Final = {"1k": 1000, "1K": 1024, "25.6k": 25_600, "2M": 2 * 2**20}


def _reads_numbers() -> None:
    read = {text: _parsed("--max-num-batched-tokens", text).max_num_batched_tokens for text in _NUMBERS}
    expect(read == _NUMBERS, f"they read {read}")


def _async_args() -> None:
    parser = baton.AsyncEngineArgs.add_cli_args(argparse.ArgumentParser(), async_args_only=True)
    flags = {name for action in parser._actions for name in action.option_strings}
    expect("--enable-log-requests" in flags and "--max-model-len" not in flags, "its flags are others")


METHODS: Final = Group(
    "EngineArgs methods",
    {
        "add_cli_args": holds(lambda: _parsed("--max-model-len", "64").max_model_len == 64),
        "from_cli_args": holds(lambda: _parsed("--dtype", "float32").dtype == "float32"),
        "__post_init__": raises(lambda: EngineArgs(model=MODEL, max_num_seqs=0), "max_num_seqs"),
        "human-readable integers 1k, 1K, 25.6k, 2M": _reads_numbers,
        "25.6K is refused": raises(lambda: _parsed("--max-num-batched-tokens", "25.6K"), "25.6K"),
        "model by position": gives(lambda: EngineArgs(MODEL).model, MODEL),
        "create_engine_config()": _config,
        "create_engine_config(usage_context, headless)": partial(_config, usage_context=None, headless=False),
        **{f"{one}()": attribute(lambda: EngineArgs, one) for one in _INTERNAL},
        "AsyncEngineArgs.add_cli_args(async_args_only)": _async_args,
    },
)

# --- quantization, the engine's parts, prefix caching ---


QUANTIZATION: Final = Group(
    "quantization (Quark, OCP MX)",
    {
        'LLM(quantization="quark")': field("quantization", "quark", EFFECTS),
        'LLM(kv_cache_dtype="fp8")': field("kv_cache_dtype", VALUES["kv_cache_dtype"], EFFECTS),
        "a quark checkpoint": generates("quark-fp8-kv-fp8", quantization="quark", kv_cache_dtype="fp8"),
        "an mxfp4 checkpoint": generates("quark-mxfp4"),
        "an mxfp6 checkpoint (quark)": generates("quark-mxfp6-e2m3"),
        "a quark checkpoint of layerwise mixed precision": generates("quark-mix"),
        "quantization_config of an awq checkpoint": generates("auto-awq"),
    },
)


def _registers() -> None:
    registry = imported("baton", "ModelRegistry")
    registry.register_model("AuditedForCausalLM", "baton_engine.models.decoder:Decoder")
    expect("AuditedForCausalLM" in registry.get_supported_archs(), "it is not listed")


def _ranks() -> None:
    ranks = llm().collective_rpc(lambda worker: (worker.rank, worker.local_rank))
    expect(list(map(tuple, ranks)) == [(0, 0)], f"they are {ranks}")


def _one_core() -> None:
    expect(isinstance(llm().llm_engine, baton.LLMEngine), "LLM has another engine")
    ours = generated(max_tokens=2).outputs[0].token_ids
    expect(list(_run().outputs[0].token_ids) == list(ours), "LLMEngine and LLM differ")


ARCHITECTURE: Final = Group(
    "architecture",
    {
        "tensor_parallel_size and pipeline_parallel_size of 2": lambda: EngineArgs(
            model=MODEL, tensor_parallel_size=2, pipeline_parallel_size=2
        ),
        "VllmConfig": gives(lambda: type(_args().create_engine_config()).__name__, "VllmConfig"),
        "ModelRegistry.register_model": _registers,
        "rank and local_rank of workers": _ranks,
        "LLM, server and engine share one engine core": _one_core,
    },
)
_DOCUMENT: Final = list(range(10, 330))


def _cached(prompt: list[int]) -> int:
    return int(generated(prompt, max_tokens=1).num_cached_tokens)


def _reuses_document() -> None:
    _cached([*_DOCUMENT, 7])
    cached = _cached([*_DOCUMENT, 8])
    expect(cached >= len(_DOCUMENT) // 2, f"{cached} of {len(_DOCUMENT)} tokens are reused")


def _reuses_rounds() -> None:
    first = [{"role": "user", "content": "What is the os module? " * 12}]
    output = llm().chat(first, _ONE, use_tqdm=False)[0]
    answer = {"role": "assistant", "content": output.outputs[0].text}
    second = llm().chat([*first, answer, first[0]], _ONE, use_tqdm=False)[0]
    expect(second.num_cached_tokens > 0, "the first round is computed again")


PREFIX_CACHING: Final = Group(
    "prefix caching",
    {
        "enable_prefix_caching": all_of(field("enable_prefix_caching", False, EFFECTS), _reuses_document),
        "queries of a long document reuse its blocks": _reuses_document,
        "rounds of a conversation reuse the earlier ones'": _reuses_rounds,
    },
)
