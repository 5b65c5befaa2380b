"""The effects of engine arguments that no worker's settings show, looked for where a user finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from baton import AsyncEngineArgs, EngineArgs, PoolingParams, RequestOutputKind, SamplingParams
from baton.commands import cli_arguments
from baton.config.engine_folders import with_local_folders
from baton.config.worker_parts import worker_settings
from baton.processes.launcher import LocalCluster
from baton_core.errors import InvalidModelError
from baton_engine.sizing import MemoryState
from baton_router.requests.generation import GenerationRequest
from baton_router.requests.request_reader import PromptReader
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.text.generation_defaults import with_generation_config
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tools.vllm_audit.checkpoints import checkpoint, computed_dtype, loaded, with_processor
from tools.vllm_audit.probes import Effect, once
from tools.vllm_audit.processes import two_machines
from tools.vllm_audit.subjects import (
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

_COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
_DOCUMENTED: Final[Mapping[str, Any]] = {
    "block_size": (16, 128),
    "gpu_memory_utilization": (0.9, 0.92),
    "max_num_batched_tokens": (None, 8192),
    "max_num_seqs": (None, 256),
}
"""Defaults, as the versions of vLLM's documentation give them."""


def default_of(name: str) -> Any:
    """The default of a field of `EngineArgs`."""
    return next(one.default for one in fields(EngineArgs) if one.name == name)


def _documented_default(name: str) -> Effect:
    def effect() -> None:
        default = default_of(name)
        expect(default in _DOCUMENTED[name], f"default {default}; vLLM {_DOCUMENTED[name][-1]}")

    return effect


def _memory_share() -> None:
    _documented_default("gpu_memory_utilization")()
    is_of_whole = "total_bytes" in MemoryState.__dataclass_fields__
    expect(is_of_whole, "a share of the free memory, for all workers together; vLLM: of the device's memory")


def _downloaded(**given: str) -> None:
    """A revision names the snapshot that is served from the folder of downloads."""
    repository = folder() / "models--audited--model"
    snapshot = repository / "snapshots" / _COMMIT
    snapshot.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).touch()
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "audited").write_text(_COMMIT)
    with (
        patch.dict("os.environ", {"HF_HUB_OFFLINE": "1"}),
        patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),
    ):
        args = with_local_folders(EngineArgs(**{"model": MODEL, "download_dir": str(folder()), **given}))
    expect(str(snapshot) in (args.model, args.tokenizer), f"{args.model}, {args.tokenizer}")


def _model_len() -> None:
    try:
        generated([1] * (MAX_MODEL_LEN + 10), subject=configured())
    except ValueError:
        expect(configured().llm_engine.max_model_len == MAX_MODEL_LEN, "another length is kept")
    else:
        expect(False, "a longer prompt is taken")
    expect(default_of("max_model_len") is None, "its default is not the model's")
    expect(not _lowers(), "the default is lowered to what fits the KV cache, with a log line; vLLM raises")


def _lowers() -> bool:
    """The engine's default is shortened where the KV cache is too small."""
    with said(), loaded(Path(MODEL), kv_cache_memory_bytes=1 << 20) as small:
        return bool(small.llm_engine.max_model_len < llm().llm_engine.max_model_len)


def _seed() -> None:
    def sampled(subject: Any) -> list[int]:
        return list(generated(subject=subject, temperature=1.0, max_tokens=12).outputs[0].token_ids)

    expect(sampled(configured()) != sampled(llm()), "another seed samples the same")


def _logs_stats() -> None:
    heard = []
    for subject in (configured(), llm()):
        generated(subject=subject)
        with said() as texts:
            subject.llm_engine.do_log_stats()
        heard.append(texts)
    silent, loud = heard
    expect(loud and not silent, f"figures are logged all the same, or never: {heard}")


def _max_logprobs() -> None:
    try:
        generated(subject=configured(), logprobs=3)
    except ValueError:
        return
    expect(False, "more log-probabilities are given")


def _stream_interval() -> None:
    engine, sizes = configured().llm_engine, list[int]()
    params = SamplingParams(
        temperature=0.0, max_tokens=9, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    engine.add_request("streamed", PROMPT, params)
    while engine.has_unfinished_requests():
        sizes += [len(output.outputs[0].token_ids) for output in engine.step()]
    expect(sizes == [1, 4, 4], f"outputs have {sizes} tokens")


def _prompt_embeds() -> None:
    ids = [5, 6, 7]
    (table,) = configured().apply_model(lambda model: dict(model.named_parameters())["embedding.table"])
    prompts = (ids, {"prompt_embeds": table[ids]})
    texts = [generated(prompt, subject=configured()).outputs[0].text for prompt in prompts]
    expect(texts[0] == texts[1], f"other texts: {texts}")


def _default_params() -> None:
    params = configured().get_default_sampling_params()
    expect(params.top_k == 7, f"top_k is {params.top_k}")
    model = with_generation_config(read_model_folder(Path(MODEL)), overrides={"max_new_tokens": 5})
    reader = PromptReader(
        ServedAdapters(("",)), model, Tokenizer(model), max_output_tokens=model.max_output_tokens
    )
    request = GenerationRequest(prompt=PROMPT, sampling={"max_tokens": 20})
    most = reader.read(request, max_model_len=MAX_MODEL_LEN).params.max_tokens
    expect(most == 5, f"max_new_tokens limits no request of a server: max_tokens is {most}")


def _names() -> None:
    expect("audited" in repr(configured().llm_engine.args.model_names), "another name is served")


def _float16() -> None:
    dtype, texts = computed_dtype("float16")
    is_said = any(re.search(r"\bfloat16", one) for one in texts)
    expect(dtype == "torch.float16" or is_said, f"a float16 checkpoint computes in {dtype} without a word")


def _is_handed_to_router(*flags: str) -> Effect:
    def effect() -> None:
        with_, without = (
            cli_arguments.router_flags(cli_arguments.parse(["serve", MODEL, *more])) for more in (flags, ())
        )
        expect(with_ != without, "the router does not get it")

    return effect


def _request_log() -> None:
    expect(AsyncEngineArgs(model=MODEL, enable_log_requests=True).enable_log_requests, "it is lost")


def _logits_processors() -> None:
    expect(with_processor(), "a class of vLLM's kind is taken and never applied")


def _takes_priority() -> None:
    output = configured().generate(
        [[1, 2], [1, 3]], SamplingParams(max_tokens=1), use_tqdm=False, priority=[1, 0]
    )
    expect(len(output) == 2, "requests with a priority are lost")


def _model_is_loaded() -> None:
    expect(generated().outputs[0].text, "no text")


def _tokenizer() -> None:
    other = checkpoint()
    (other / "chat_template.jinja").write_text("audited")
    with loaded(Path(MODEL), tokenizer=str(other)) as subject:
        messages = [{"role": "user", "content": "a"}]
        (output,) = subject.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    expect(output.prompt == "audited", f"the model's own folder is read: the prompt is {output.prompt!r}")


def _token_of_hub() -> None:
    args = EngineArgs(model="audited/model", hf_token="audited")  # noqa: S106 (no secret)
    download = patch("huggingface_hub.snapshot_download", side_effect=OSError("audited"))
    with download as called, suppress(InvalidModelError):
        with_local_folders(args)
    expect(called.call_args.kwargs.get("token") == "audited", "the hub does not get it")


def _config_elsewhere() -> None:
    other = checkpoint(max_position_embeddings=128)
    with loaded(Path(MODEL), hf_config_path=str(other)) as subject:
        expect(subject.llm_engine.max_model_len == 128, "the model's own config.json is read")


def _without_tokenizer() -> None:
    with loaded(Path(MODEL), skip_tokenizer_init=True) as subject:
        output = generated([5, 6], subject=subject, detokenize=False).outputs[0]
        expect(output.token_ids and not output.text, "text is made")


def _long_prefills() -> None:
    one, two = (
        worker_settings(EngineArgs(model=MODEL, max_num_partial_prefills=2, max_long_partial_prefills=number))
        for number in (1, 2)
    )
    expect(one != two, "the workers do not get it")


def _deals_ranks() -> None:
    args = EngineArgs(data_parallel_size=4, data_parallel_start_rank=1, data_parallel_size_local=2)
    cluster = LocalCluster(
        router_args=(),
        worker_args=(),
        num_prefill_workers=1,
        num_decode_workers=1,
        num_mixed_workers=0,
        data_parallel_ranks=args.local_data_parallel_ranks,
    )
    ranks = [cluster.data_parallel_rank(number) for number in range(len(cluster.roles))]
    expect(ranks == [1, 2, 1, 2], f"the launcher starts workers of ranks {ranks}")


def _holds_whole_experts() -> None:
    whole, dealt, cut = (
        worker_settings(EngineArgs(model=MODEL, tensor_parallel_size=2, **given)).engine.parallel
        for given in (
            {"enable_expert_parallel": True},
            {"enable_expert_parallel": True, "expert_placement_strategy": "round_robin"},
            {},
        )
    )
    expect(len({whole, dealt, cut}) == 3, "the workers do not get it")


def _holds_anyway(why: str) -> Effect:
    """A setting asks for what holds in any case."""
    return lambda: why


def _sleeps() -> None:
    before = generated().outputs[0].text
    llm().sleep(1)
    llm().wake_up()
    expect(generated().outputs[0].text == before, "another text after it")


def _pools() -> None:
    expect(pooling().supported_tasks == ("embed", "token_embed"), "it does not embed")


def _pools_the_mean() -> None:
    params = PoolingParams(use_activation=False)
    one, tokens = (
        pooling().encode(PROMPT, params, use_tqdm=False, pooling_task=task)[0].outputs.data
        for task in ("embed", "token_embed")
    )
    expect(bool(((one - tokens.mean(dim=0)).abs() < 1e-4).all()), "it is not the mean")


_EFFECTS: Final[Mapping[str, Effect]] = {
    "runner": _pools,
    "convert": _pools,
    "pooler_config": _pools_the_mean,
    "model": _model_is_loaded,
    "tokenizer": _tokenizer,
    "revision": lambda: _downloaded(model="audited/model", revision="audited"),
    "tokenizer_revision": lambda: _downloaded(tokenizer="audited/model", tokenizer_revision="audited"),
    "download_dir": lambda: _downloaded(model="audited/model", revision=_COMMIT),
    "seed": _seed,
    "disable_log_stats": _logs_stats,
    "enable_log_requests": _request_log,
    "max_logprobs": _max_logprobs,
    "stream_interval": _stream_interval,
    "enable_prompt_embeds": _prompt_embeds,
    "max_model_len": _model_len,
    "override_generation_config": _default_params,
    "generation_config": _is_handed_to_router("--generation-config", "vllm"),
    "reasoning_parser": _is_handed_to_router("--reasoning-parser", "qwen3"),
    "reasoning_parser_plugin": _is_handed_to_router("--reasoning-parser-plugin", "x.py"),
    "served_model_name": _names,
    "scheduling_policy": _takes_priority,
    "dtype": _float16,
    "enable_sleep_mode": _sleeps,
    "enable_chunked_prefill": _holds_anyway("prompts are always computed in chunks"),
    "disable_cascade_attn": _holds_anyway("no kernel does cascade attention"),
    "use_tqdm_on_load": _holds_anyway("loading shows no bar"),
    "tokenizer_mode": _holds_anyway("the tokenizer's file gives the same ids in each mode"),
    **dict.fromkeys(
        ("data_parallel_size", "data_parallel_size_local", "data_parallel_start_rank"), _deals_ranks
    ),
    "data_parallel_hybrid_lb": _holds_anyway("a router balances among the workers that it has"),
    "data_parallel_external_lb": _holds_anyway("a server with one rank leaves the others to a balancer"),
    **dict.fromkeys(("enable_expert_parallel", "expert_placement_strategy"), _holds_whole_experts),
    "nnodes": two_machines,
    "node_rank": two_machines,
    "hf_token": _token_of_hub,
    "hf_config_path": _config_elsewhere,
    "skip_tokenizer_init": _without_tokenizer,
    "max_long_partial_prefills": _long_prefills,
    "logits_processors": _logits_processors,
    **{name: _documented_default(name) for name in _DOCUMENTED},
    "gpu_memory_utilization": _memory_share,
}
EFFECTS: Final[Mapping[str, Effect]] = {name: once(effect) for name, effect in _EFFECTS.items()}
"""By the name of the field."""
