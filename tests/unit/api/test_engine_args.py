"""`EngineArgs`: every documented field works, or is refused by name; flags and fields are one table."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from baton import AsyncEngineArgs, EngineArgs
from baton.commands.cli_arguments import COMMANDS, parse, router_flags, settle, worker_flags
from baton.config.engine_arg_fields import Part, flag_of, flags_of
from baton.config.engine_args import BUNDLED_MODEL
from baton.config.fixed_engine_args import FIXED
from baton_core.errors import InvalidConfigError

GIVEN: dict[str, Any] = {
    "model": "some/model",
    "served_model_name": ("one", "two"),
    "tokenizer": "some/tokenizer",
    "revision": "main",
    "tokenizer_revision": "v2",
    "download_dir": "/cache",
    "load_format": "safetensors",
    "dtype": "float32",
    "quantization": "int8",
    "device": "cpu",
    "seed": -5,
    "enforce_eager": True,
    "batch_invariant": True,
    "block_size": 16,
    "enable_prefix_caching": False,
    "max_model_len": 4096,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 512,
    "scheduling_policy": "priority",
    "async_scheduling": True,
    "max_num_partial_prefills": 3,
    "max_long_partial_prefills": 2,
    "long_prefill_token_threshold": 64,
    "kv_cache_memory_bytes": 2**20,
    "gpu_memory_utilization": 0.5,
    "kv_transport": "tcp",
    "cpu_kernels": "plain",
    "max_logprobs": -1,
    "logprobs_mode": "raw_logits",
    "logits_processors": ("package.module:function",),
    "structured_outputs_backend": "guidance",
    "structured_outputs_config": {"backend": "guidance", "reasoning_parser": "qwen3"},
    "reasoning_parser": "qwen3",
    "generation_config": "vllm",
    "override_generation_config": {"temperature": 0.5},
    "profiler_config": {"profiler": "torch", "torch_profiler_dir": "/traces"},
    "kv_events_config": {"enable_kv_cache_events": True, "topic": "kv"},
    "otlp_traces_endpoint": "http://localhost:4317",
    "otlp_traces_protocol": "http/protobuf",
    "allow_functions": True,
    "shutdown_timeout": 5,
    "disable_log_stats": True,
    "prefill_workers": 2,
    "split": "never",
    "decode_workers": 1,
    "enable_log_requests": True,
}
"""A value other than the default for every field that does something."""


def as_arguments(values: dict[str, Any]) -> list[str]:
    known = {flag.field: flag for flag in flags_of(AsyncEngineArgs)}
    arguments = [f"--model={values['model']}"]
    return arguments + [text for name, flag in known.items() for text in flag.given(values[name])]


def test_every_field_that_does_something_takes_another_value_than_its_default() -> None:
    declared = {one.name: one.default for one in fields(AsyncEngineArgs) if one.metadata}
    assert declared.keys() == GIVEN.keys()
    args = AsyncEngineArgs(**GIVEN)
    for name, value in GIVEN.items():
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
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2; allowed: 1 (one device computes a model"),
        ({"enable_lora": True}, "enable_lora is True; allowed: False (adapters are not supported)"),
        ({"quantization": "awq"}, "quantization is 'awq'; allowed: int8 (weights that are stored quantized"),
        ({"quantization_param_path": "a"}, "quantization_param_path is 'a'; allowed: None (weights are"),
        ({"trust_remote_code": True}, "trust_remote_code is True; allowed: False (code from model folders"),
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill is False; allowed: None or True"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config is {'method': 'ngram'}; allowed"),
        ({"block_size": 0}, "block_size is 0; allowed: an integer from 1 to 65536"),
        ({"block_size": True}, "block_size is True; allowed: an integer"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5; allowed: a finite number over 0"),
        ({"max_model_len": "16x"}, "max_model_len is '16x'; allowed: an integer from 1"),
        ({"max_model_len": "0.3k"}, None),
        ({"max_model_len": "0.0001k"}, "max_model_len is '0.0001k'; allowed: an integer from 1"),
        ({"load_format": "gguf"}, "load_format is 'gguf'; allowed: auto, safetensors, pt"),
        ({"logprobs_mode": "none"}, "logprobs_mode is 'none'; allowed: raw_logprobs, "),
        ({"served_model_name": [""]}, "served_model_name is ''; allowed: 1 to 128 printable characters"),
        ({"logits_processors": 3}, "logits_processors is 3; allowed: a list of "),
        ({"override_generation_config": [1]}, "override_generation_config is a list; allowed: a JSON object"),
        (
            {"structured_outputs_config": {"enable_in_reasoning": True}},
            "structured_outputs_config has enable_in_reasoning: True; allowed: backend and reasoning_parser",
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
    with pytest.raises(InvalidConfigError, match="tensor_parallel_size is 2; allowed: 1"):
        EngineArgs.from_cli_args(parser.parse_args(["--tensor-parallel-size", "2"]))
    with pytest.raises(InvalidConfigError, match="enable_lora is True; allowed: False"):
        EngineArgs.from_cli_args(parser.parse_args(["--enable-lora"]))
    assert "lora" not in parser.format_help()


def test_serve_refuses_such_flags_by_name_too() -> None:
    args = parse(
        ["serve", "--tensor-parallel-size", "1", "--runner=generate", "--enable-sleep-mode", "model"]
    )
    assert args.model == "model"
    for flag, said in (
        ("--tensor-parallel-size=2", "--tensor-parallel-size is 2; allowed: 1 (one device"),
        ("--enable-lora", "--enable-lora is True; allowed: False (adapters"),
        ("--quantization=awq", "--quantization is 'awq'; allowed: int8"),
    ):
        for command in ("serve", "mixed-worker"):
            with pytest.raises(InvalidConfigError) as raised:
                parse([command, flag])
            assert str(raised.value).startswith(said)


def test_arguments_can_be_changed_one_by_one() -> None:
    args = replace(EngineArgs(max_model_len="1k"), max_num_seqs=3)  # type: ignore[arg-type]
    assert (args.max_model_len, args.max_num_seqs) == (1000, 3)


def test_what_only_the_launcher_reads_is_settled_before_router_and_workers_start() -> None:
    args = parse(
        ["serve", '--structured-outputs-config={"backend": "guidance", "reasoning_parser": "qwen3"}']
    )
    settle(args)
    assert "--structured-outputs-backend=guidance" in worker_flags(args, num_workers=1)
    assert "--structured-outputs-backend=guidance" in router_flags(args)
    assert "--reasoning-parser=qwen3" in router_flags(args)


def test_a_revision_is_fetched_once_for_router_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def fetch(model: str, *, revision: str, cache_dir: str, allow_patterns: list[str]) -> str:
        asked.append((model, revision, cache_dir))
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    args = parse(["serve", "some/model", "--revision", "v1", "--download-dir", "/cache"])
    settle(args)
    assert asked == [("some/model", "v1", "/cache")]
    assert worker_flags(args, num_workers=1)[0] == str(tmp_path)
    assert router_flags(args)[0] == str(tmp_path)
    assert "--served-model-name=some/model" in router_flags(args)
