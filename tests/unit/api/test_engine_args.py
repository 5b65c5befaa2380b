"""`EngineArgs`: every documented field works, or is refused by name; flags and fields are one table."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from baton import AsyncEngineArgs, EngineArgs
from baton.commands.cli_arguments import COMMANDS, parse
from baton.config.engine_arg_fields import Part, flag_of, flags_of
from baton.config.engine_args import BUNDLED_MODEL
from baton.config.fixed_engine_args import FIELD_OF, FIXED
from baton.config.ignored_engine_args import IGNORED, log_ignored
from baton.config.vllm_config import StructuredOutputsConfig
from baton_core.errors import InvalidConfigError

GIVEN: dict[str, Any] = {
    "model": "some/model",
    "served_model_name": ("one", "two"),
    "tokenizer": "some/tokenizer",
    "revision": "main",
    "tokenizer_revision": "v2",
    "download_dir": "/cache",
    "load_format": "safetensors",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 3,
    "pipeline_layer_partition": "3,5,4",
    "data_parallel_size": 4,
    "data_parallel_start_rank": 1,
    "data_parallel_size_local": 1,
    "data_parallel_hybrid_lb": True,
    "prefill_tensor_parallel_size": 4,
    "decode_tensor_parallel_size": 1,
    "enable_expert_parallel": True,
    "expert_placement_strategy": "round_robin",
    "hf_token": "secret",
    "hf_config_path": "/config",
    "hf_overrides": {"rope_theta": 5e5},
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "quantization": "int8",
    "quantization_config": {"ignore": ["lm_head"]},
    "int4_w4a8": True,
    "share_weights": True,
    "kv_cache_dtype": "fp8",
    "distributed_executor_backend": "mp",
    "nnodes": 3,
    "node_rank": 2,
    "master_addr": "10.0.0.1",
    "master_port": 29600,
    "ray_address": "10.0.0.1:6379",
    "ray_placement_group": "ranks",
    "rank_pools": "apart",
    "ray_placement_strategy": "STRICT_PACK",
    "ray_placement_timeout": 60.0,
    "ray_environment": ("MY_*",),
    "device": "cpu",
    "seed": -5,
    "enforce_eager": True,
    "batch_invariant": True,
    "parallel_invariant": True,
    "block_size": 16,
    "enable_prefix_caching": False,
    "max_model_len": 4096,
    "disable_sliding_window": True,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 512,
    "scheduling_policy": "priority",
    "async_scheduling": True,
    "max_num_partial_prefills": 3,
    "max_long_partial_prefills": 2,
    "long_prefill_token_threshold": 64,
    "kv_cache_memory_bytes": 2**20,
    "num_gpu_blocks_override": 64,
    "gpu_memory_utilization": 0.5,
    "kv_transport": "tcp",
    "cpu_kernels": "plain",
    "max_logprobs": -1,
    "stream_interval": 3,
    "logprobs_mode": "raw_logits",
    "logits_processors": ("package.module:function",),
    "structured_outputs_backend": "guidance",
    "structured_outputs_config": {"backend": "guidance", "reasoning_parser": "qwen3"},
    "reasoning_parser": "qwen3",
    "reasoning_parser_plugin": "parsers.py",
    "generation_config": "vllm",
    "override_generation_config": {"temperature": 0.5},
    "profiler_config": {"profiler": "torch", "torch_profiler_dir": "/traces"},
    "kv_events_config": {"enable_kv_cache_events": True, "topic": "kv"},
    "otlp_traces_endpoint": "http://localhost:4317",
    "otlp_traces_protocol": "http/protobuf",
    "allow_functions": True,
    "shutdown_timeout": 5,
    "disable_log_stats": True,
    "kv_cache_metrics": True,
    "enable_mfu_metrics": True,
    "kv_cache_metrics_sample": 0.5,
    "prefill_workers": 2,
    "split": "never",
    "decode_workers": 1,
    "enable_log_requests": True,
    "max_lora_rank": 64,
    "max_loras": 4,
    "max_cpu_loras": 8,
    "enable_prompt_embeds": True,
    "runner": "pooling",
    "convert": "embed",
    "pooler_config": {"pooling_type": "MEAN"},
}
"""A value other than the default for every field that does something, but for those of `EXCLUSIVE`."""
_DRAFTS: dict[str, Any] = {"method": "ngram", "model": "ngram", "num_speculative_tokens": 3}
_SHORT = {"spec_method": "ngram", "spec_model": "ngram", "spec_tokens": 3, "speculative_config": _DRAFTS}
EXCLUSIVE = {**_SHORT, "data_parallel_rank": 2, "data_parallel_external_lb": True, "enable_lora": True}
"""Fields that contradict some of the others."""


def as_arguments(values: dict[str, Any]) -> list[str]:
    known = {flag.field: flag for flag in flags_of(AsyncEngineArgs)}
    arguments = [f"--model={values['model']}"]
    given = [flag.given(values[name]) for name, flag in known.items() if name in values]
    return arguments + [text for texts in given for text in texts]


def test_every_field_that_does_something_takes_another_value_than_its_default() -> None:
    declared = {one.name: one.default for one in fields(AsyncEngineArgs) if one.metadata}
    assert declared.keys() == GIVEN.keys() | EXCLUSIVE.keys()
    for given in (GIVEN, EXCLUSIVE | {"data_parallel_size": 3}):
        args = AsyncEngineArgs(**given)
        for name, value in given.items():
            assert value != declared[name]
            assert getattr(args, name) == value


def test_flags_say_what_fields_say() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    assert AsyncEngineArgs.from_cli_args(parser.parse_args(as_arguments(GIVEN))) == AsyncEngineArgs(**GIVEN)
    assert AsyncEngineArgs.from_cli_args(parser.parse_args([])) == AsyncEngineArgs()
    assert EngineArgs().model == BUNDLED_MODEL


def test_a_model_goes_by_what_the_user_called_it() -> None:
    assert EngineArgs().model_names == ("baton-docs-5m",)
    assert EngineArgs(model="org/a").model_names == ("org/a",)
    assert EngineArgs(model="org/a", served_model_name=("b", "c")).model_names == ("b", "c")


def test_serve_and_its_children_take_the_flags_of_their_fields() -> None:
    flags = {command.name: {flag.name: flag for flag in command.flags} for command in COMMANDS}
    for one in (one for one in fields(EngineArgs) if one.metadata and one.name != "model"):
        flag, part = flag_of(one), one.metadata["part"]
        for command, parts in (
            ("serve", (Part.WORKER, Part.ROUTER, Part.BOTH, Part.LAUNCHER)),
            ("router", (Part.ROUTER, Part.BOTH)),
            ("decode-worker", (Part.WORKER, Part.BOTH)),
        ):
            if part in parts:
                assert flags[command][flag.name] == flag, f"{command} {flag.name}"


@pytest.mark.parametrize("name", FIXED)
def test_a_field_with_one_value_takes_it_and_refuses_another_by_name_and_reason(name: str) -> None:
    fixed = FIXED[name]
    for value in (*fixed.allowed, None):
        assert getattr(EngineArgs(**{name: value}), name) in fixed.allowed
    with pytest.raises(InvalidConfigError) as raised:
        EngineArgs(**{name: "something else"})
    assert str(raised.value).startswith(f"{name} is 'something else'; allowed: ")
    assert str(raised.value).endswith(f" ({fixed.reason})")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"decode_context_parallel_size": 2},
            "decode_context_parallel_size is 2; allowed: 1 (a worker's ranks are",
        ),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; allowed: "),
        ({"quantization": "humming"}, "quantization is 'humming'; allowed: int8, int8_per_channel_weight_on"),
        ({"quantization_param_path": "a"}, "quantization_param_path is 'a'; allowed: None (scales come"),
        ({"dtype": "float17"}, "dtype is 'float17'; allowed: auto, float32"),
        ({"hf_overrides": "a=b"}, "hf_overrides is 'a=b'; allowed: a JSON object"),
        ({"max_num_seqs": print}, "max_num_seqs is <built-in function print>; allowed: an integer"),
        ({"block_size": 0}, "block_size is 0; allowed: an integer from 1 to 65536"),
        ({"block_size": True}, "block_size is True; allowed: an integer"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5; allowed: a finite number over 0"),
        ({"max_model_len": "16x"}, "max_model_len is '16x'; allowed: an integer from 1"),
        ({"max_model_len": "0.3k"}, None),
        ({"max_model_len": "0.0001k"}, "max_model_len is '0.0001k'; allowed: an integer from 1"),
        (
            {"load_format": "sharded_state"},
            "load_format is 'sharded_state'; allowed: auto, safetensors, pt, gguf, dummy (weights in other",
        ),
        ({"logprobs_mode": "none"}, "logprobs_mode is 'none'; allowed: raw_logprobs, "),
        ({"served_model_name": [""]}, "served_model_name is ''; allowed: 1 to 128 printable characters"),
        ({"logits_processors": 3}, "logits_processors is 3; allowed: a list of "),
        ({"override_generation_config": [1]}, "override_generation_config is a list; allowed: a JSON object"),
        (
            {"structured_outputs_config": {"enable_in_reasoning": True}},
            "structured_outputs_config has enable_in_reasoning: True; allowed: backend, reasoning_parser and",
        ),
        (
            {"structured_outputs_config": {"backend": "outlines"}},
            "structured_outputs_backend is 'outlines'; allowed: auto, xgrammar, guidance",
        ),
        ({"profiler_config": {"profiler": "cuda"}}, "profiler_config has profiler: 'cuda'; allowed: torch"),
    ],
)
def test_a_value_that_cannot_hold_is_refused_by_name(given: dict[str, Any], said: str | None) -> None:
    if said is None:
        EngineArgs(**given)
        return
    with pytest.raises(InvalidConfigError) as raised:
        EngineArgs(**given)
    assert str(raised.value).startswith(said)


VLLM_DEFAULTS: dict[str, Any] = {
    "all2all_backend": "allgather_reducescatter",
    "prefix_caching_hash_algo": "sha256",
    "ignore_patterns": ["original/**/*"],
    "otlp_traces_endpoint": None,
    "scheduler_reserve_full_isl": True,
    "dp_sync_interval": 16,
    "safetensors_prefetch_num_threads": 8,
    "safetensors_prefetch_block_size": 16777216,
    "prefix_cache_retention_interval": 0,
    "mm_hasher_algorithm": "blake3",
    "mm_encoder_fp8_scale_save_margin": 1.5,
    "video_pruning_method": "evs",
    "mm_tensor_ipc": "direct_rpc",
    "mm_ipc_gpu_memory_gb": 0,
    "mm_device_do_normalize": True,
    "enable_cumem_allocator": False,
    "replayssm_buffer_len": 16,
    "mamba_cache_philox_rounds": 0,
    "swa_bounded_replay": True,
    "optimization_level": 2,
    "compilation_config": {"mode": 0},
}
"""Defaults of vLLM's that differ from those of the fields here."""


@pytest.mark.parametrize("name", VLLM_DEFAULTS)
def test_vllm_s_own_defaults_are_never_refused(name: str) -> None:
    EngineArgs(**{name: VLLM_DEFAULTS[name]})


@pytest.mark.parametrize("name", IGNORED)
def test_a_value_without_effect_is_taken_and_named_in_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = EngineArgs(**{name: "something else"})
    assert getattr(args, name) == "something else"
    warns = (
        pytest.warns(DeprecationWarning, match="swap_space is ignored")
        if name == "swap_space"
        else contextlib.nullcontext()
    )
    with warns:
        log_ignored(vars(args))
    (record,) = caplog.records
    assert record.getMessage() == f"taken without effect: {name} ({IGNORED[name].reason})"
    caplog.clear()
    log_ignored(vars(EngineArgs()))
    log_ignored(vars(EngineArgs(**{name: None})))
    assert caplog.records == []


def test_objects_of_other_libraries_are_taken_as_their_values() -> None:
    args = EngineArgs(dtype=torch.bfloat16, hf_token=True)  # type: ignore[arg-type]
    assert (args.dtype, args.hf_token) == ("bfloat16", None)
    config = StructuredOutputsConfig(backend="guidance", reasoning_parser="qwen3")
    args = EngineArgs(structured_outputs_config=config)  # type: ignore[arg-type]
    assert (args.structured_outputs_backend, args.reasoning_parser) == ("guidance", "qwen3")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="max_modell_len"):
        EngineArgs(max_modell_len=5)


@pytest.mark.parametrize(
    ("text", "value"), [("16k", 16_000), ("16K", 16_384), ("1.5M", 1_572_864), ("25", 25), ("auto", None)]
)
def test_lengths_may_be_written_short(text: str, value: int | None) -> None:
    if not text.isdigit():
        assert EngineArgs(max_model_len=text).max_model_len == value  # type: ignore[arg-type]
    if value is not None:
        assert parse(["serve", "--max-model-len", text]).max_model_len == value


def test_flags_of_what_there_is_not_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["--tensor-parallel-size", "1"]))
    assert args.tensor_parallel_size == 1
    with pytest.raises(InvalidConfigError, match="decode_context_parallel_size is 2; allowed: 1"):
        EngineArgs.from_cli_args(parser.parse_args(["--decode-context-parallel-size", "2"]))
    with pytest.raises(InvalidConfigError, match="enable_return_routed_experts is True; allowed: False"):
        EngineArgs.from_cli_args(parser.parse_args(["--enable-return-routed-experts"]))
    assert "routed" not in parser.format_help()


def test_a_parser_shows_the_defaults_of_fields() -> None:
    shown = vars(AsyncEngineArgs.add_cli_args(argparse.ArgumentParser()).parse_args([]))
    args = AsyncEngineArgs()
    fixed = {name: getattr(args, name) for name in FIELD_OF.values()}
    assert {name: shown[name] for name in fixed} == fixed
    assert (shown["tensor_parallel_size"], shown["trust_remote_code"]) == (1, False)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("-tp 1", "tensor_parallel_size", 1),
        ("-tp=2", "tensor_parallel_size", 2),
        ("-q int8", "quantization", "int8"),
        ("-O3", "optimization_level", 3),
        ("--trust-remote-code", "trust_remote_code", True),
        ("--no-trust-remote-code", "trust_remote_code", False),
        ("--no-fully-sharded-loras", "fully_sharded_loras", False),
        ("--enable-chunked-prefill", "enable_chunked_prefill", True),
        ("--no-enable-chunked-prefill", "enable_chunked_prefill", False),
    ],
)
def test_a_parser_knows_short_forms_and_switches(words: str, field: str, value: object) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    assert getattr(parser.parse_args(words.split()), field) == value


def test_a_parser_keeps_a_short_form_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--name")
    args = EngineArgs.add_cli_args(parser).parse_args(["-n", "a"])
    assert (args.name, args.nnodes) == ("a", 1)


def test_a_list_without_effect_is_taken_whole() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["--cudagraph-capture-sizes", "1", "2"]))
    assert args.cudagraph_capture_sizes == [1, 2]


def test_serve_refuses_such_flags_by_name_too() -> None:
    line = (
        "serve --decode-context-parallel-size 1 --runner=generate --enable-sleep-mode --optimization-level 3 "
        "--disable-custom-all-reduce --trust-remote-code model"
    )
    args = parse(line.split())
    assert args.model == "model"
    for flag, said in (
        ("--enable-eplb", "--enable-eplb is True; allowed: False (a worker's"),
        ("--enable-dbo", "--enable-dbo is True; allowed: False (a worker's"),
        ("--quantization=humming", "--quantization is 'humming'; allowed: int8"),
    ):
        for command in ("serve", "mixed-worker"):
            with pytest.raises(InvalidConfigError) as raised:
                parse([command, flag])
            assert str(raised.value).startswith(said)
    with pytest.raises(InvalidConfigError, match=r"--skip-tokenizer-init is True; allowed: False \(a server"):
        parse(["serve", "--skip-tokenizer-init"])


def test_arguments_can_be_changed_one_by_one() -> None:
    args = replace(EngineArgs(max_model_len="1k"), max_num_seqs=3)  # type: ignore[arg-type]
    assert (args.max_model_len, args.max_num_seqs) == (1000, 3)
