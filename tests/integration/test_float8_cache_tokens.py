"""A KV cache of 8-bit floats through whole clusters: fewer bytes, the same tokens in every arrangement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton import LLM
from baton import SamplingParams as PublicParams
from baton_core.errors import IncompatibleWorkerError, InvalidConfigError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from tests.models import make_prompt
from tests.quantized_reference import FIXTURES, copy_with_tokenizer
from tests.sim.torch_cluster import Backend, Shape, TorchCluster
from tests.tiers import exhaustive

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=16, ignore_eos=True)
SHAPE = Shape(num_blocks=96, max_num_batched_tokens=32, kv_cache_dtype="fp8")
SCALED = FIXTURES / "quark-fp8-kv-fp8"
SCALED_KV = FIXTURES / "ct-fp8-kv"


def specs(name: str, vocab_size: int = 128) -> list[RequestSpec]:
    return [
        RequestSpec(
            request_id=f"{name}-{length}",
            prompt_token_ids=tuple(make_prompt(length, seed=length, vocab_size=vocab_size)),
            params=GREEDY,
        )
        for length in (20, 45, 70)
    ]


def tokens_of(folder: Path, backend: Backend | None, shape: Shape = SHAPE) -> list[dict[int, list[int]]]:
    """Return the tokens of all requests, first computed in full, then over cached blocks."""
    with TorchCluster(folder, backend, shape) as cluster:
        outcomes = [*cluster.serve(specs("cold")), *cluster.serve(specs("cached"))]
        if backend is not None:
            assert cluster.engines["d"].num_pulled_blocks > 0
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2"])
@pytest.mark.parametrize("backend", ["shared_memory", exhaustive("in_process"), exhaustive("tcp")])
def test_tokens_are_the_same_cached_and_split(folder: Path, backend: Backend, kv_cache_dtype: str) -> None:
    shape = replace(SHAPE, kv_cache_dtype=kv_cache_dtype)
    together = tokens_of(folder, None, shape)
    assert together[:3] == together[3:]
    assert tokens_of(folder, backend, shape) == together


@pytest.mark.parametrize("checkpoint", [SCALED, SCALED_KV], ids=lambda path: path.name)
def test_the_scales_of_a_checkpoint_are_used(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_model(EngineSettings(model=str(checkpoint), dtype="float32", kv_cache_dtype="fp8"))
    (pair,) = loaded.kv_spec.scales
    assert all(0 < scale < 1 for scale in pair)
    assert "KV scales are 1.0" not in caplog.text
    assert tokens_of(checkpoint, "shared_memory") == tokens_of(checkpoint, None)


def test_missing_scales_are_1_and_the_log_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_model(EngineSettings(model=str(folder), dtype="float32", kv_cache_dtype="fp8"))
    assert loaded.kv_spec.scales == ()
    assert "KV scales are 1.0 in 2 of 2 layers: the checkpoint has none" in caplog.text


def test_as_many_bytes_hold_four_times_the_tokens_of_float32_and_twice_those_of_bfloat16(
    folder: Path,
) -> None:
    blocks = {}
    for dtype, cache in (("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "fp8")):
        settings = EngineSettings(model=str(folder), dtype=dtype, kv_cache_dtype=cache)
        blocks[dtype, cache] = load_model(settings).kv_spec.block_bytes
    assert blocks["float32", "auto"] == 4 * blocks["bfloat16", "fp8"]
    assert blocks["bfloat16", "auto"] == 2 * blocks["bfloat16", "fp8"]


def test_workers_with_other_caches_or_scales_do_not_pair(folder: Path) -> None:
    shapes = [SHAPE, replace(SHAPE, kv_cache_dtype="auto"), replace(SHAPE, kv_cache_dtype="fp8_e5m2")]
    identities = []
    for shape in shapes:
        with TorchCluster(folder, None, shape) as cluster:
            identities.append(cluster.sim.workers["m"].core.config.identity)
    for other in identities[1:]:
        with pytest.raises(IncompatibleWorkerError, match=r"^kv_layout is '.*'; allowed: '.*float8_e4m3fn"):
            identities[0].require_compatible(other)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "message"),
    [
        ("int8_per_token_head", "kv_cache_dtype is 'int8_per_token_head'; allowed: auto, float32"),
        ("bfloat16", "kv_cache_dtype is 'bfloat16' with a model in torch.float32; allowed: auto, fp8"),
    ],
)
def test_other_types_are_refused_by_name(folder: Path, kv_cache_dtype: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{message}"):
        load_model(EngineSettings(model=str(folder), dtype="float32", kv_cache_dtype=kv_cache_dtype))


def test_the_quickstart_of_quark_runs_as_its_page_says(tmp_path: Path) -> None:
    """A checkpoint that amd-quark exported, with its scales of the KV cache."""
    model = str(copy_with_tokenizer(SCALED.name, tmp_path / "model"))
    with LLM(model, kv_cache_dtype="fp8", quantization="quark", kv_cache_memory_bytes=1 << 20) as llm:
        params = PublicParams(temperature=0.8, top_p=0.95, max_tokens=8, ignore_eos=True)
        outputs = llm.generate(["w5 w6", "w7"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [8, 8]
    assert all("w" in output.outputs[0].text for output in outputs)
