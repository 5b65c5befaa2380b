"""`LLM` and the names of the package, as vLLM documents them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import baton
from baton import SamplingParams
from baton_core.errors import InvalidModelError
from tools.vllm_audit.checkpoints import loaded
from tools.vllm_audit.effects import EFFECTS
from tools.vllm_audit.engine_arguments import VALUES
from tools.vllm_audit.probes import all_of, attribute, field, holds, imported, name, parameter, raises
from tools.vllm_audit.subjects import (
    CHAT_TEMPLATE,
    MAX_MODEL_LEN,
    MODEL,
    PROMPT,
    configured,
    expect,
    folder,
    generated,
    llm,
    pooling,
    said,
)
from tools.vllm_audit.verdict import Group, Probe

_PUBLIC: Final = (
    *("AsyncEngineArgs", "CompletionOutput", "EngineArgs", "LLM", "RequestOutput", "SamplingParams"),
    *("TextPrompt", "TokensPrompt", "AsyncLLMEngine", "LLMEngine", "ClassificationOutput", "EmbeddingOutput"),
    *("PoolingOutput", "PoolingParams", "PoolingRequestOutput", "ScoringOutput", "initialize_ray_cluster"),
    "PromptType",
)
_POOLING_MEMBERS: Final = (
    *("PoolingParams.use_activation", "PoolingParams.dimensions", "PoolingParams.clone"),
    *("PoolingRequestOutput.request_id", "PoolingRequestOutput.outputs"),
    *("PoolingRequestOutput.prompt_token_ids", "PoolingRequestOutput.num_cached_tokens"),
    "PoolingRequestOutput.finished",
)
_RAY_PARAMETERS: Final = ("parallel_config", "ray_address", "require_gpu_on_driver")
PACKAGE: Final = Group(
    "package names",
    {
        **{one: name(one) for one in _PUBLIC},
        **{one: name(one.split(".")[0], member=one.split(".")[1]) for one in _POOLING_MEMBERS},
        **{
            f"initialize_ray_cluster({one}=)": partial(imported, "baton", "initialize_ray_cluster")
            for one in _RAY_PARAMETERS
        },
    },
)

# --- the constructor ---

_FIELD_NAMES: Final = (
    *(
        "runner",
        "convert",
        "tokenizer_mode",
        "skip_tokenizer_init",
        "trust_remote_code",
        "seed",
        "enforce_eager",
    ),
    *(
        "allowed_local_media_path",
        "allowed_media_domains",
        "tensor_parallel_size",
        "quantization",
        "revision",
    ),
    *("cpu_offload_gb", "disable_custom_all_reduce", "hf_token", "hf_overrides", "mm_processor_kwargs"),
    *(
        "pooler_config",
        "attention_config",
        "compilation_config",
        "swap_space",
        "worker_cls",
        "tokenizer_revision",
    ),
    *("kv_transfer_config", "structured_outputs_config", "profiler_config", "kv_cache_memory_bytes", "dtype"),
    *(
        "disable_log_stats",
        "max_model_len",
        "gpu_memory_utilization",
        "logits_processors",
        "model",
        "tokenizer",
    ),
)
_OTHER_VALUES: Final[dict[str, Any]] = {
    "offload_group_size": 1,
    "offload_num_in_group": 2,
    "offload_prefetch_step": 2,
    "offload_params": ["weight"],
    "enable_return_routed_experts": True,
    "quantization_config": {"a": 1},
    "renderer_num_workers": 2,
}


def _chat_template() -> None:
    with loaded(Path(MODEL), chat_template=CHAT_TEMPLATE) as subject:
        output = subject.chat(_MESSAGES, SamplingParams(max_tokens=1), use_tqdm=False)[0]
    expect(output.prompt == "[Hello]", f"the prompt is {output.prompt!r}")


def _swap_space() -> str:
    with said() as texts, suppress(InvalidModelError):
        baton.LLM(model="/nonexistent", swap_space=8)
    expect(any("swap_space" in one for one in texts), "ignored without a word")
    return texts[0]


def _speculates() -> None:
    args = baton.EngineArgs(model=MODEL, spec_method="ngram", spec_model="ngram", spec_tokens=3)
    config = args.create_speculative_config()
    expect(config is not None and config.num_speculative_tokens == 3, f"it drafts by {config}")


def _takes_fields() -> None:
    expect(configured().llm_engine.max_model_len == MAX_MODEL_LEN, "a field of EngineArgs is lost")


CONSTRUCTOR: Final = Group(
    "LLM(...)",
    {
        **{one: field(one, VALUES[one], EFFECTS) for one in _FIELD_NAMES},
        **{one: field(one, value, EFFECTS) for one, value in _OTHER_VALUES.items()},
        **dict.fromkeys(("spec_method", "spec_model", "spec_tokens"), _speculates),
        "swap_space": _swap_space,
        "**kwargs of EngineArgs": _takes_fields,
        "data_parallel_size over 1 raises ValueError": raises(
            lambda: baton.LLM(model=MODEL, data_parallel_size=2), "data_parallel_size"
        ),
        "chat_template": _chat_template,
    },
)
_ATTRIBUTES: Final = (
    *("llm_engine", "model_config", "engine_class", "request_counter", "default_sampling_params"),
    *("supported_tasks", "runner_type", "renderer", "chat_template", "input_processor"),
)


def _has_attribute(text: str) -> Probe:
    """An attribute may be None if it says that nothing is set."""

    def probe() -> object:
        value = getattr(llm(), text)
        return type(value).__name__

    return probe


ATTRIBUTES: Final = Group("LLM attributes", {one: _has_attribute(one) for one in _ATTRIBUTES})

# --- methods ---

_MESSAGES: Final = [{"role": "user", "content": "Hello"}]
_METHODS: Final = (
    *("chat", "collective_rpc", "enqueue", "enqueue_chat", "from_engine_args", "generate"),
    *("sleep", "wake_up", "start_profile", "stop_profile", "get_tokenizer", "get_default_sampling_params"),
    *("reset_prefix_cache", "wait_for_completion", "init_weight_transfer_engine", "start_weight_update"),
    *("update_weights", "finish_weight_update"),
)


def _world_size() -> None:
    expect(llm().get_world_size() == 1, f"get_world_size() is {llm().get_world_size()}")


def _repr() -> None:
    expect("Linear" in repr(llm()) or "\n" in repr(llm()), f"it shows no hierarchy of modules: {llm()!r}")


def _apply_model() -> None:
    def look(model: Any) -> tuple[int, int]:
        return len(list(model.named_parameters())), len(model.state_dict())

    try:
        found = llm().apply_model(look)
    except AttributeError as error:
        expect(False, f"the function gets no nn.Module: {error}")
    expect(min(found[0]) > 0, "the module has no parameters")


_FIGURES: Final = (
    *(
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
    ),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens"),
    *("prompt_tokens_by_source", "prompt_tokens_cached", "iteration_tokens_total", "cache_config_info"),
    *(
        "request_success",
        "request_max_num_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
    ),
    *("request_prompt_tokens", "request_generation_tokens", "inter_token_latency_seconds"),
    *("time_to_first_token_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
    "request_decode_time_seconds",
)
"""Metrics of an engine of text, without their prefix."""


def _has_figures() -> None:
    generated()
    names = {one.name.removeprefix("vllm:") for one in llm().get_metrics()}
    expect(set(_FIGURES) <= names, f"it lacks {', '.join(sorted({*_FIGURES} - names))}")


def _works_as_method(text: str) -> Probe:
    return attribute(lambda: baton.LLM, text)


METHODS: Final = Group(
    "LLM methods",
    {
        "__init__": lambda: expect(llm().llm_engine, "no engine"),
        **{one: _works_as_method(one) for one in _METHODS},
        "encode": lambda: pooling().encode(PROMPT, use_tqdm=False),
        "embed": lambda: pooling().embed(PROMPT, use_tqdm=False),
        "get_world_size": _world_size,
        "get_metrics": _has_figures,
        "reset_mm_cache": lambda: llm().reset_mm_cache(),
        "__repr__": _repr,
        "apply_model": _apply_model,
    },
)


# --- what else LLM has ---


def _profile() -> None:
    configured().start_profile("audited")
    generated(subject=configured())
    configured().stop_profile()
    files = [path.name for path in folder().iterdir() if "audited" in path.name and path.is_file()]
    expect(files and all("audited_dp0_pp0_tp0" in one for one in files), f"its file is {files}")


def _sleeps(level: int, mode: str = "abort") -> Probe:
    def probe() -> None:
        before = generated().outputs[0].text
        try:
            llm().sleep(level, mode)
        finally:
            llm().wake_up()
        expect(generated().outputs[0].text == before, "another text after it")

    return probe


def _waits() -> None:
    names = llm().enqueue([PROMPT, [1, 2]], SamplingParams(max_tokens=1), use_tqdm=False)
    outputs = llm().wait_for_completion(output_type=baton.RequestOutput, use_tqdm=False)
    expect([one.request_id for one in outputs] == list(names), "another order")


def _wakes_by_tag() -> None:
    llm().sleep(1)
    llm().wake_up(["weights"])
    llm().wake_up(["kv_cache"])
    llm().wake_up(["scheduling"]) if llm().is_sleeping else None
    expect(not llm().is_sleeping, "it sleeps after all tags")


def _resets(**arguments: bool) -> Probe:
    def probe() -> None:
        expect(llm().reset_prefix_cache(**arguments), "nothing is reset")

    return probe


def _resets_beside_running() -> None:
    llm().enqueue([PROMPT], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    llm().llm_engine.step()
    try:
        expect(llm().reset_prefix_cache(reset_running_requests=True), "nothing is reset")
    finally:
        llm().wait_for_completion(use_tqdm=False)


def _rpc(**arguments: Any) -> Probe:
    def probe() -> None:
        result = llm().collective_rpc(lambda runner, *given, **named: (given, named), **arguments)
        expected = (tuple(arguments.get("args", ())), dict(arguments.get("kwargs", {})))
        expect(list(map(tuple, result)) == [expected], f"it returns {result!r}")

    return probe


def _takes(method: str, argument: str) -> Probe:
    return parameter(lambda: getattr(baton.LLM, method), argument)


OTHERS: Final = Group(
    "LLM, other parameters",
    {
        "wait_for_completion(use_tqdm)": lambda: llm().wait_for_completion(use_tqdm=False),
        "wait_for_completion returns a list in order": _waits,
        "collective_rpc(method: str)": lambda: llm().collective_rpc("no_such_method_of_workers"),
        "collective_rpc(method: callable)": _rpc(),
        "collective_rpc(timeout)": _rpc(timeout=10.0),
        "collective_rpc(args)": _rpc(args=(1, 2)),
        "collective_rpc(kwargs)": _rpc(kwargs={"a": 1}),
        "collective_rpc returns a list": holds(lambda: isinstance(llm().collective_rpc(id), list)),
        **{f"sleep(level {level})": _sleeps(level) for level in (0, 1, 2)},
        "sleep(mode abort, wait)": all_of(_sleeps(1), _sleeps(1, "wait")),
        "wake_up(tags)": _wakes_by_tag,
        'sleep(mode="keep") at level 1 or 2': _sleeps(1, "keep"),
        "wait_for_completion(output_type)": _waits,
        "get_world_size(include_dp)": lambda: expect(llm().get_world_size(include_dp=False) == 1, "not 1"),
        "reset_prefix_cache(reset_running_requests)": _resets_beside_running,
        "reset_prefix_cache(reset_connector)": _resets(reset_connector=False),
        "start_weight_update(is_checkpoint_format)": _takes("start_weight_update", "is_checkpoint_format"),
        "update_weights(request)": _takes("update_weights", "request"),
        "init_weight_transfer_engine(request)": _takes("init_weight_transfer_engine", "request"),
        "start_profile(profile_prefix)": _profile,
    },
)


_POOL_VALUES: Final[dict[str, Any]] = {
    "prompts": PROMPT,
    "pooling_params": baton.PoolingParams(use_activation=False),
    "use_tqdm": False,
    "lora_request": None,
    "pooling_task": "embed",
}


def _pool(method: str, argument: str) -> None:
    given = {"prompts": PROMPT, "use_tqdm": False, argument: _POOL_VALUES[argument]}
    (output,) = getattr(pooling(), method)(**given)
    size = len(output.outputs.embedding) if method == "embed" else len(output.outputs.data)
    expect(size > 1, "it is no vector")


POOLING: Final = Group(
    "LLM.encode and embed, their parameters",
    {
        **{
            f"encode({one})": partial(_pool, "encode", one)
            for one in ("prompts", "pooling_params", "use_tqdm", "lora_request", "pooling_task")
        },
        **{
            f"embed({one})": partial(_pool, "embed", one) for one in ("prompts", "pooling_params", "use_tqdm")
        },
    },
)
