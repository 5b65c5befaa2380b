"""From a model's name to a runner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_engine import dtype
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import resolve_device
from baton_engine.dtype import resolve_dtype
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps import runner
from baton_engine.steps.decode_graphs import DecodeGraphs
from baton_kernels.selection import select_kernels
from tests.models import DYNAMIC_ROPE, greedy_reference, make_model, make_prompt
from tests.unit.engine.steps import generate

pytestmark = pytest.mark.slow

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_loaded_runner_generates_what_transformers_does(model_folder: Callable[[str], Path]) -> None:
    folder = model_folder("llama")
    cache = KVCacheSettings(kv_cache_memory_bytes=40 * 4096)
    loaded = load_model(EngineSettings(model=str(folder), block_size=8, kv_cache=cache)).start()
    assert (loaded.kv_cache.num_blocks, loaded.kv_cache.max_model_len) == (40, 320)
    assert loaded.runner.kv_pool.shape == (40, *loaded.kv_spec.block_shape)
    prompt = make_prompt(20)
    assert generate(loaded.runner, prompt, 6) == greedy_reference(folder, prompt, 6)[0]


def test_a_dynamic_rope_stretches_a_model_up_to_its_factor(tmp_path: Path) -> None:
    rope = (("rope_parameters", DYNAMIC_ROPE),)
    folder = make_model(tmp_path / "model", "llama", extra=rope, max_position_embeddings=32)

    def max_model_len(wanted: int | None) -> int:
        cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20, max_model_len=wanted)
        return load_model(EngineSettings(model=str(folder), kv_cache=cache)).start().kv_cache.max_model_len

    assert [max_model_len(None), max_model_len(20), max_model_len(128)] == [32, 20, 128]
    with pytest.raises(InvalidConfigError, match="max_model_len is 129; allowed: at most 128"):
        max_model_len(129)


def test_a_block_may_hold_more_tokens_than_the_model_has_positions(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "gpt2", max_position_embeddings=16)
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    loaded = load_model(EngineSettings(model=str(folder), block_size=64, kv_cache=cache)).start()
    assert loaded.kv_cache.max_model_len == 16


def test_the_pool_lies_where_the_caller_allocates_it(model_folder: Callable[[str], Path]) -> None:
    pools: list[torch.Tensor] = []

    def allocate(group: KVSpec, num_blocks: int) -> torch.Tensor:
        pools.append(torch.zeros((num_blocks, *group.block_shape), dtype=getattr(torch, group.dtype)))
        return pools[-1]

    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    settings = EngineSettings(model=str(model_folder("qwen3")), dtype="bfloat16", kv_cache=cache)
    loaded = load_model(settings).start(allocate)
    assert [pool.data_ptr() for pool in pools] == [loaded.runner.kv_pool.data_ptr()]
    assert loaded.runner.kv_pool.dtype is torch.bfloat16


@pytest.fixture
def _captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets decode steps be captured on the CPU, up to where a device is needed."""
    kernels = type(select_kernels("cpu").attention)
    monkeypatch.setattr(kernels, "is_capturable", lambda self, kv_pool: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(runner, "DecodeReplay", lambda *parts, is_alone: DecodeGraphs(*parts[:-1]))


@pytest.mark.usefixtures("_captures")
@pytest.mark.parametrize("variant", ["mixtral", "gpt-neox"])
def test_a_model_that_may_need_the_host_runs_eagerly_and_the_log_says_so_once(
    variant: str, model_folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 20)
    with caplog.at_level("INFO", "baton_engine.loading"):
        loaded = load_model(EngineSettings(model=str(model_folder(variant)), kv_cache=cache)).start()
    assert [line for line in caplog.messages if "eagerly" in line] == [
        "decode steps run eagerly: on this device the model in torch.float32 may need the host within a step"
    ]
    assert len(generate(loaded.runner, make_prompt(5), 3)) == 3


@pytest.mark.usefixtures("needs_build")
@pytest.mark.usefixtures("_captures")
@pytest.mark.parametrize("variant", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("error", "cache", "message"),
    [
        (
            torch.OutOfMemoryError("full"),
            KVCacheSettings(memory_share=0.01),
            r"^memory_share is 0\.01 and leaves too little memory .*\(full\); allowed: less",
        ),
        (
            torch.OutOfMemoryError("full"),
            KVCacheSettings(kv_cache_memory_bytes=1 << 20),
            r"^kv_cache_memory_bytes is 1048576 and leaves too little memory",
        ),
        (
            RuntimeError("a read on the host"),
            KVCacheSettings(kv_cache_memory_bytes=1 << 20),
            r"^enforce_eager is False, and .* cannot be captured \(a read on the host\); allowed: True",
        ),
    ],
    ids=["full by share", "full by bytes", "not capturable"],
)
def test_a_failed_capture_names_the_setting_at_fault(
    error: RuntimeError,
    cache: KVCacheSettings,
    message: str,
    variant: str,
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(InvalidConfigError, match=message):
        load_model(EngineSettings(model=str(model_folder(variant)), kv_cache=cache)).start()


def test_a_block_size_of_zero_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="block_size is 0; allowed: an integer of at least 1"):
        EngineSettings(model="m", block_size=0)


@pytest.mark.parametrize("model", ["acme/no-such-model", "/no/such/folder", "no such//name"])
def test_a_model_that_cannot_be_found_is_refused_by_name(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidModelError, match=f"model is '{model}' .*allowed: a local model folder"):
        resolve_model(model)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("requested", "checkpoint", "is_fast", "expected"),
    [
        ("auto", "float32", True, torch.float32),
        ("auto", "bfloat16", True, torch.bfloat16),
        ("auto", "float16", True, torch.bfloat16),
        ("auto", "bfloat16", False, torch.float32),
        ("auto", "float16", False, torch.float32),
        ("bfloat16", "float32", False, torch.bfloat16),
        ("float32", "bfloat16", True, torch.float32),
    ],
)
def test_element_types_follow_the_checkpoint_and_the_cpu(
    requested: str, checkpoint: str, is_fast: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype, "is_fast_in_bfloat16", lambda: is_fast)
    assert resolve_dtype(requested, checkpoint, CPU) == expected


def test_a_gpu_keeps_the_checkpoints_type_whatever_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype, "is_fast_in_bfloat16", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve_dtype("auto", "bfloat16", GPU) == torch.bfloat16
    assert resolve_dtype("auto", "float16", GPU) == torch.float16
    assert resolve_dtype("half", "bfloat16", GPU) == torch.float16


@pytest.mark.parametrize("requested", ["auto", "bfloat16"])
def test_an_old_gpu_refuses_bfloat16(requested: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(InvalidConfigError, match=r"dtype is .*; allowed on .* 7\.5: float16, float32"):
        resolve_dtype(requested, "bfloat16", GPU)
    assert resolve_dtype("auto", "float16", GPU) == torch.float16


@pytest.mark.parametrize("requested", ["float16", "half"])
def test_a_cpu_computes_float16_where_it_is_asked_for(
    requested: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve_dtype(requested, "float16", CPU) == torch.float16
    assert caplog.messages == [
        "float16 on a CPU is computed by torch, slower than other dtypes by Baton's kernels"
    ]


def test_an_unknown_element_type_is_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match="dtype is 'int4'; allowed: auto, float32, bfloat16, float16"
    ):
        resolve_dtype("int4", "float32", CPU)


def test_a_device_that_torch_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(InvalidConfigError, match=r"device is 'cuda'; allowed: auto, cpu \(torch"):
        resolve_device("cuda")
    with pytest.raises(InvalidConfigError, match="device is 'tpu'; allowed: auto, cpu, cuda"):
        load_model(EngineSettings(model="m", device="tpu")).start()


def test_a_changed_element_type_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype, "is_fast_in_bfloat16", lambda: False)
    with caplog.at_level(logging.INFO):
        for checkpoint in ("bfloat16", "float16", "float32"):
            resolve_dtype("auto", checkpoint, CPU)
    assert caplog.messages == [
        f"weights are {name}; computing in float32, which this CPU's kernels have; dtype={name} is "
        "slower here"
        for name in ("bfloat16", "float16")
    ]
