"""Configurations and constructors of engines as vLLM documents them."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton import AsyncEngineArgs, AsyncLLMEngine, EngineArgs, LLMEngine
from baton.api.engine_options import read_engine_options
from baton.api.ray_stat_logger import RayPrometheusStatLogger
from baton.config.vllm_config import VllmConfig
from baton.executors.in_process_executor import InProcessExecutor
from baton.executors.spawned_executor import SpawnedExecutor
from baton_core.errors import InvalidConfigError, InvalidRequestError, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args


def test_a_configuration_has_the_names_that_users_read(folder: Path) -> None:
    args = tiny_args(folder, block_size=16, max_num_seqs=7, served_model_name=["small"])
    config = args.create_engine_config(usage_context="anything")
    model = config.model_config
    assert (model.model, model.tokenizer, model.served_model_name) == (str(folder), str(folder), ("small",))
    assert (model.dtype, model.max_model_len, model.architectures) == (
        torch.float32,
        512,
        ["LlamaForCausalLM"],
    )
    assert (model.get_vocab_size(), model.get_hidden_size()) == (
        model.hf_config.vocab_size,
        model.hf_text_config.hidden_size,
    )
    assert model.get_head_size() * model.get_num_attention_heads() == model.get_hidden_size()
    assert (model.get_num_layers(config.parallel_config), model.get_num_kv_heads()) == (
        model.hf_config.num_hidden_layers,
        model.hf_config.num_key_value_heads,
    )
    assert model.get_diff_sampling_param() == {}
    assert (config.cache_config.block_size, config.cache_config.num_gpu_blocks) == (16, None)
    assert (config.scheduler_config.max_num_seqs, config.scheduler_config.policy) == (7, "fcfs")
    assert config.scheduler_config.chunked_prefill_enabled
    parallel = config.parallel_config
    assert (parallel.world_size, parallel.rank, parallel.local_rank, parallel.data_parallel_size) == (
        1,
        0,
        0,
        1,
    )
    assert config.device_config.device_type == "cpu"
    assert (config.load_config, config.lora_config) == (args.create_load_config(), None)
    assert config.decoding_config.backend == "auto"
    assert config.compilation_config is None
    assert args.create_model_config() == model
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.cache_config.block_size = 32  # type: ignore[misc]


def test_a_configuration_comes_from_the_arguments_alone(folder: Path, tmp_path: Path) -> None:
    args = tiny_args(
        folder,
        max_model_len=100,
        dtype="bfloat16",
        override_generation_config={"temperature": 0.5},
        prefill_workers=1,
        decode_workers=2,
    )
    config = args.create_engine_config()
    assert (config.model_config.max_model_len, config.model_config.dtype) == (100, torch.bfloat16)
    assert config.model_config.get_diff_sampling_param() == {"temperature": 0.5}
    assert (config.parallel_config.world_size, config.parallel_config.world_size_across_dp) == (1, 3)
    with pytest.raises(InvalidConfigError, match="headless is True; allowed: False"):
        args.create_engine_config(headless=True)


def test_methods_of_vllm_s_arguments_are_there() -> None:
    args = EngineArgs(max_num_seqs=3)
    assert args.create_speculative_config() is None  # type: ignore[func-returns-value]
    tokens, seqs = args.get_batch_defaults(world_size=1)
    assert (tokens["LLM_CLASS"], seqs["OPENAI_API_SERVER"]) == (2048, 128)
    assert args._get_min_mm_batched_tokens() == 0


def engines(folder: Path) -> list[tuple[str, Any]]:
    args = tiny_args(folder)
    config = args.create_engine_config()
    names = ("model_config", "cache_config", "parallel_config", "scheduler_config", "device_config")
    names += ("load_config", "lora_config", "speculative_config", "decoding_config", "observability_config")
    parts = {name: getattr(config, name) for name in (*names, "prompt_adapter_config")}
    return [
        ("arguments", lambda: LLMEngine.from_engine_args(args, usage_context="LLM_CLASS", stat_loggers=None)),
        ("configuration", lambda: LLMEngine(config, InProcessExecutor, True, usage_context="LLM_CLASS")),
        ("parts", lambda: LLMEngine(**parts, executor_class=None, log_stats=False, use_cached_outputs=True)),
        ("from_vllm_config", lambda: LLMEngine.from_vllm_config(config, disable_log_stats=True)),
    ]


@pytest.mark.parametrize("number", range(4))
def test_an_engine_is_made_of_arguments_configurations_or_their_parts(folder: Path, number: int) -> None:
    name, make = engines(folder)[number]
    engine = make()
    try:
        assert engine.args.disable_log_stats is (name in ("parts", "from_vllm_config"))
        assert engine.get_model_config().max_model_len == engine.max_model_len
        assert isinstance(engine.vllm_config, VllmConfig)
        assert engine.vllm_config.cache_config.num_gpu_blocks == engine._executor.num_blocks > 0
        assert engine.get_supported_tasks() == ("generate",)
        assert not engine.is_sleeping()
        engine.add_request("a", inputs=PROMPT, params=greedy(2))
        assert engine.has_unfinished_requests_for_virtual_engine(0)
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert [output.request_id for output in outputs] == ["a"]
        engine.do_log_stats(None, None, None, None)
        assert not engine.DO_VALIDATE_OUTPUT
    finally:
        engine.close()


def test_what_an_engine_cannot_be_given_is_refused(folder: Path) -> None:
    args = tiny_args(folder)
    one, other = args.create_engine_config(), tiny_args(folder).create_engine_config()
    for given, error, said in (
        ({}, TypeError, "LLMEngine.__init__\\(\\) needs vllm_config"),
        ({"vllm_config": args, "stats": 1}, TypeError, "unexpected keyword argument 'stats'"),
        (
            {"vllm_config": args, "executor_class": SpawnedExecutor},
            InvalidConfigError,
            "executor_class is .*",
        ),
        (
            {"vllm_config": replace(args, prefill_workers=1)},
            InvalidConfigError,
            "prefill_workers is 1 with decode_workers 0; allowed: both over 0",
        ),
        (
            {"vllm_config": args, "stat_loggers": {"a": 1}},
            InvalidConfigError,
            "stat_loggers is .*; allowed: None",
        ),
        (
            {"model_config": one.model_config, "cache_config": other.cache_config},
            InvalidConfigError,
            "model_config and the other parts are of several; allowed: the parts of one",
        ),
    ):
        with pytest.raises(error, match=said):
            LLMEngine(**given)


def test_what_a_request_cannot_be_given_is_refused(folder: Path) -> None:
    engine = LLMEngine(tiny_args(folder))
    try:
        with pytest.raises(TypeError, match="request_id is 0; allowed: text"):
            engine.add_request(0, PROMPT, greedy(1))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="needs a prompt"):
            engine.add_request("a")
        with pytest.raises(InvalidRequestError, match="virtual_engine is 1; allowed: 0: pipelines"):
            engine.has_unfinished_requests_for_virtual_engine(1)
        with pytest.raises(InvalidRequestError, match="lora_id is 1; allowed: none, as no adapter was added"):
            engine.pin_lora(1)
        assert engine.collective_rpc(lambda runner: (runner.rank, runner.local_rank)) == [(0, 0)]
        assert engine.apply_model(lambda model: 3) == [3]
        assert engine.reset_prefix_cache()
    finally:
        engine.close()


def test_an_asynchronous_engine_has_the_same_members(folder: Path) -> None:
    asyncio.run(use_asynchronous_engine(folder))


async def use_asynchronous_engine(folder: Path) -> None:
    args = AsyncEngineArgs(**vars(tiny_args(folder)))
    engine = AsyncLLMEngine.from_engine_args(
        args, start_engine_loop=True, usage_context="any", stat_loggers=None
    )
    try:
        assert (await engine.get_model_config()).max_model_len == engine.max_model_len
        assert await engine.get_supported_tasks() == ("generate",)
        assert not await engine.is_tracing_enabled()
        assert (engine.is_running, engine.errored, engine.is_stopped) == (True, False, False)
        outputs = [
            output
            async for output in engine.generate(
                PROMPT, greedy(2), "a", prompt_text="shown", session_id="one", trace_headers=None
            )
        ]
        assert outputs[-1].prompt == "shown"
        await engine.pause_generation(mode="keep", clear_cache=False)
        assert await engine.is_paused()
        await engine.resume_generation()
        assert not await engine.is_paused()
        await engine.do_log_stats(None, None)
        with pytest.raises(InvalidRequestError, match="task is 'pooling'; allowed: generate"):
            await anext(engine.encode("a", None, "b"))  # type: ignore[arg-type]
        with pytest.raises(
            InvalidRequestError, match="data_parallel_rank is 1; allowed: None: Baton chooses"
        ):
            await anext(engine.generate(PROMPT, greedy(1), "b", data_parallel_rank=1))  # type: ignore[arg-type]
    finally:
        engine.shutdown()
    assert isinstance(engine.dead_error, RequestError)


def test_that_figures_do_not_go_to_ray_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    args = EngineArgs()
    assert read_engine_options("LLMEngine", args, None, {"stat_loggers": [RayPrometheusStatLogger]}) is args
    assert "figures are not exported to Ray" in caplog.text
