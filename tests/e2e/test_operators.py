"""An operator has `LLM`'s own workers sleep, wake up, forget, and call functions by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton import LLM
from baton.api.metrics import Gauge
from baton_core.errors import InvalidRequestError, RequestError
from tests.e2e.calls import draw_prompt, greedy
from tests.e2e.processes import KV_CACHE_BYTES, children_of, until
from tests.integration.asked_functions import block_size

FUNCTIONS = block_size.__module__
PROMPT = draw_prompt(100, seed=3)
WEIGHT_BYTES = 4 * 4 * 3 * 64 * 32_768
"""In float32: three matrices in each of 4 layers, which are nearly all of the model."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """An `LLM` with a prefill and a decode worker of its own."""

    llm: LLM
    traces: Path
    worker_pids: tuple[int, ...]

    def tokens(self) -> tuple[list[int], int | None]:
        """Return the tokens that follow the prompt, and how many tokens of the prompt were cached."""
        (output,) = self.llm.generate(PROMPT, greedy(12), use_tqdm=False)
        return list(output.outputs[0].token_ids), output.num_cached_tokens

    def num_running(self) -> float:
        (gauge,) = (one for one in self.llm.get_metrics() if one.name == "vllm:num_requests_running")
        assert isinstance(gauge, Gauge)
        return gauge.value

    def own_bytes(self) -> list[int]:
        """Resident memory of each worker that nobody shares."""
        return [own_bytes(pid) for pid in self.worker_pids]

    def pool_bytes(self) -> list[int]:
        """Memory behind each worker's KV pool, be it mapped or not."""
        return [pool_bytes(pid) for pid in self.worker_pids]


def own_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])


def pool_bytes(pid: int) -> int:
    files = [file for file in Path(f"/proc/{pid}/fd").iterdir() if "memfd:baton-kv" in str(file.readlink())]
    by_inode = {file.stat().st_ino: 512 * file.stat().st_blocks for file in files}
    return sum(by_inode.values())


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawned]:
    from tests.models import make_model  # Transformers: seconds that every process of the suite would take

    folder = tmp_path_factory.mktemp("operators")
    model = make_model(folder / "model", "llama", num_layers=4, intermediate_size=32_768)
    before = set(children_of(os.getpid()))
    traces = folder / "traces"
    with LLM(
        str(model),
        dtype="float32",
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        structured_outputs_config={"backend": "guidance"},
        profiler_config={"torch_profiler_dir": str(traces)},
        prefill_workers=1,
        decode_workers=1,
    ) as llm:
        (launcher,) = set(children_of(os.getpid())) - before
        workers = [pid for pid, title in sorted(children_of(launcher).items()) if title.endswith("-worker")]
        assert len(workers) == 2
        yield Spawned(llm, traces, tuple(workers))


@pytest.mark.parametrize("level", [1, 2])
def test_workers_give_memory_back_while_they_sleep_and_then_the_same_tokens(
    spawned: Spawned, level: int
) -> None:
    llm = spawned.llm
    assert llm.reset_prefix_cache()
    expected = spawned.tokens()
    assert expected[1] == 0
    own = spawned.own_bytes()
    assert min(spawned.pool_bytes()) > 0.95 * KV_CACHE_BYTES
    llm.sleep(level)
    assert llm.is_sleeping
    assert max(spawned.pool_bytes()) < 0.01 * KV_CACHE_BYTES
    freed = [before - after for before, after in zip(own, spawned.own_bytes(), strict=True)]
    assert [bytes_ > 0.8 * WEIGHT_BYTES for bytes_ in freed] == [level == 2] * 2, freed
    with pytest.raises(RequestError, match="sleeps"):
        spawned.tokens()
    llm.wake_up()
    assert not llm.is_sleeping
    assert min(spawned.pool_bytes()) > 0.95 * KV_CACHE_BYTES
    assert spawned.tokens() == expected


def test_a_sleep_ends_what_is_open_first(spawned: Spawned) -> None:
    llm = spawned.llm
    expected, _ = spawned.tokens()
    llm.enqueue(PROMPT, greedy(400))
    until(lambda: spawned.num_running() > 0, 5.0, "a running request")
    llm.sleep(1)
    llm.wake_up()
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert output.outputs[0].finish_reason == "abort"
    assert spawned.tokens() == (expected, 0)


def test_a_reset_may_take_the_blocks_of_running_requests(spawned: Spawned) -> None:
    llm, sampled = spawned.llm, greedy(100, temperature=1.0, seed=5)
    prompts = [PROMPT, PROMPT[1:], PROMPT[2:]]
    expected = [one.outputs[0].token_ids for one in llm.generate(prompts, sampled, use_tqdm=False)]
    llm.enqueue(prompts, sampled)
    until(lambda: spawned.num_running() > 0, 5.0, "a running request")
    assert not llm.reset_prefix_cache()
    assert llm.reset_prefix_cache(reset_running_requests=True)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [one.outputs[0].token_ids for one in outputs] == expected
    assert {one.outputs[0].finish_reason for one in outputs} == {"length"}


def test_cached_prefixes_are_forgotten(spawned: Spawned) -> None:
    spawned.tokens()
    assert (spawned.tokens()[1] or 0) > 0
    assert spawned.llm.reset_prefix_cache()
    assert spawned.tokens()[1] == 0


def test_functions_are_called_by_name(spawned: Spawned) -> None:
    llm = spawned.llm
    sizes = llm.apply_model(f"{FUNCTIONS}:num_weights")
    assert len(sizes) == 2
    assert sizes[0] == sizes[1] >= WEIGHT_BYTES / 4
    assert llm.collective_rpc(f"{FUNCTIONS}:block_size", timeout=30.0, args=(3,)) == [96, 96]
    with pytest.raises(InvalidRequestError, match=r"method is .*allowed: a name such as") as caught:
        llm.collective_rpc(block_size)
    assert caught.value.field == "method"
    with pytest.raises(InvalidRequestError, match=r"func is .*allowed: a name such as"):
        llm.apply_model(lambda model: model)
    with pytest.raises(RequestError, match="worker decode-1: collective_rpc failed: ValueError: on purpose"):
        llm.collective_rpc(f"{FUNCTIONS}:fail")


def test_each_worker_writes_its_trace(spawned: Spawned) -> None:
    spawned.llm.start_profile("mine")
    spawned.llm.generate(PROMPT, greedy(2), use_tqdm=False)
    spawned.llm.stop_profile()
    traces = [path.name for path in spawned.traces.iterdir() if path.stat().st_size]
    pids = {int(name.split(".")[1]) for name in traces}
    assert (len(traces), pids) == (2, set(spawned.worker_pids))
