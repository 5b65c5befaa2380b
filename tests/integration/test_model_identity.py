"""A worker joins a router, and the router's workers, with the very same model alone."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from safetensors.torch import load_file, save_file

from baton import LLM
from baton_core.errors import IncompatibleWorkerError, InvalidModelError
from baton_core.sessions.worker_info import Role
from baton_engine.sampling.token_logprobs import LogprobsMode
from baton_engine.sizing import KVCacheSettings
from baton_router.main import RouterServer
from tests.integration.controlled_cluster import operated
from tests.integration.router_cluster import MODEL, serving
from tests.integration.scripted_worker import until
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.integration.worker_cluster import KV_CACHE_BYTES, eventually, made, working
from tests.models import make_model

JOINED_WITHIN_S = 60.0
PROCESSOR = "tests.unit.engine.test_logits_processors:add_lengths"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def swap_two_tokens(tokenizer: dict[str, Any]) -> None:
    """Give two words each other's ids: the same sizes, another text."""
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[1000:1002]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def change_byte(path: Path) -> None:
    """Flip one bit of the last byte, which is a weight's."""
    with path.open("r+b") as file:
        file.seek(-1, 2)
        (byte,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte ^ 1]))


async def refusal(port: int, **settings: Any) -> str:
    """Why a worker with settings of `made` may not join the router at a port."""
    async with made(Role.DECODE, port, name="stranger", **settings) as (worker, _):
        running = asyncio.create_task(worker.run())
        try:
            await until(lambda: bool(worker.metrics.refusals()) or running.done(), JOINED_WITHIN_S)
            (refused,) = worker.metrics.refusals() or (str(running.exception()),)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    router, _, reason = refused.partition(" refuses this worker (incompatible_worker): ")
    assert router.removeprefix("no router takes this worker: ") == f"router 127.0.0.1:{port}"
    return reason


@asynccontextmanager
async def joining(server: RouterServer, name: str = "first", **settings: Any) -> AsyncIterator[None]:
    """A worker that has joined a router."""
    async with working(Role.PREFILL, server.grpc_port, name=name, **settings):
        fleet = server._router.fleet
        await until(lambda: name in {info.worker_id for info, _ in fleet.workers()}, JOINED_WITHIN_S)
        yield


@pytest.mark.parametrize(
    ("file", "change", "error"),
    [
        ("tokenizer.json", swap_two_tokens, "tokenizer is '"),
        ("config.json", lambda values: values["rope_parameters"].update(rope_theta=5e5),
         "config.rope_parameters.rope_theta is '500000'; allowed: '10000'"),
        ("config.json", lambda values: values.update(rms_norm_eps=1e-6),
         "config.rms_norm_eps is '1e-06'; allowed: '1e-05'"),
        ("generation_config.json", lambda values: values.update(eos_token_id=[0]), None),
        ("generation_config.json", lambda values: values.update(eos_token_id=[0, 2, 5]),
         "eos_token_ids is (0, 2, 5); allowed: (0, 2)"),
    ],
)  # fmt: skip
async def test_a_router_takes_no_worker_whose_folder_is_of_another_model(
    file: str,
    change: Callable[[dict[str, Any]], None],
    error: str | None,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_json(folder / file, change)
    async with serving() as server:
        if error is None:  # config.json names the other token
            async with joining(server, engine={"model": str(folder)}):
                return
        message = await refusal(server.grpc_port, engine={"model": str(folder)})
        assert message.startswith(error)
        assert message.endswith(", as in the router's model folder")
        refused = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert f"worker 'stranger' is refused: {message}" in refused


async def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", "llama")
    async with serving() as server:
        message = await refusal(server.grpc_port, engine={"model": str(other)})
        assert "; allowed: " in message
        assert message.startswith("config.")


async def test_one_changed_byte_of_a_weight_keeps_a_worker_from_the_others(folder: Path) -> None:
    change_byte(folder / "model.safetensors")
    async with serving() as server, joining(server):
        message = await refusal(server.grpc_port, engine={"model": str(folder)})
        assert message.startswith("weights is '")
        assert message.endswith("as in the workers already registered; the same weight files")


OTHERS: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"engine": {"logprobs_mode": LogprobsMode.RAW_LOGITS}}, "logprobs_mode is 'raw_logits'; allowed: 'raw"),
    ({"engine": {"quantization": "int8"}}, "quantization is 'int8'; allowed: ''"),
    ({"engine": {"dtype": "bfloat16"}}, "dtype is 'bfloat16'; allowed: 'float32'"),
    ({"engine": {"logits_processors": (PROCESSOR,)}}, "logits_processors is ("),
    ({"structured_outputs_backend": "guidance"}, "structured_outputs_backend is 'guidance'; allowed: 'auto'"),
)
"""Settings of a worker, and the beginning of the refusal."""


async def test_a_worker_with_another_setting_that_decides_tokens_is_refused() -> None:
    async with serving() as server, joining(server):
        for settings, error in OTHERS:
            assert (await refusal(server.grpc_port, **settings)).startswith(error)


async def test_the_same_model_in_a_folder_that_is_named_and_written_otherwise_joins(folder: Path) -> None:
    for path in folder.glob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(dict(reversed(values.items())), indent=4))
    change_json(
        folder / "config.json",
        lambda values: values.update(_name_or_path="elsewhere", transformers_version="1", dtype="float32"),
    )
    change_json(
        folder / "tokenizer.json",
        lambda values: values["model"].update(merges=[pair if isinstance(pair, list) else pair.split(" ")
                                                      for pair in values["model"]["merges"]]),
    )  # fmt: skip
    path = folder / "model.safetensors"
    save_file(load_file(path), path, {"format": "pt", "revision": "2"})
    cache = KVCacheSettings(kv_cache_memory_bytes=KV_CACHE_BYTES, max_model_len=512)
    short = {"model": str(folder.rename(folder.parent / "renamed")), "kv_cache": cache}
    async with serving() as server, joining(server), joining(server, name="second", engine=short):
        lengths = [info.max_model_len for info, _ in server._router.fleet.workers()]
        assert lengths == [2048, 512]


async def test_quantized_workers_join_a_router_of_the_model_they_quantize() -> None:
    async with serving() as server, joining(server, engine={"quantization": "int8"}):
        pass


async def test_a_tokenizer_that_an_operator_chooses_is_not_compared(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_json(folder / "tokenizer.json", swap_two_tokens)
    async with serving(tokenizer=str(folder)) as server:
        async with joining(server):
            assert "worker first has another tokenizer than --tokenizer names" in caplog.text
        caplog.clear()
    async with serving(tokenizer=str(folder)) as server, joining(server, tokenizer=str(folder)):
        assert "another tokenizer" not in caplog.text


@pytest.mark.parametrize("name", ["weights", "config.rms_norm_eps", "eos_token_ids"])
def test_an_engine_wakes_up_with_the_model_alone_that_it_fell_asleep_with(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    kept = shutil.copytree(folder, tmp_path / "kept")
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        (before,) = llm.generate(PROMPT, greedy(6), use_tqdm=False)
        llm.sleep(2)
        match name:
            case "weights":
                change_byte(folder / "model.safetensors")
            case "eos_token_ids":
                change_json(folder / "config.json", lambda values: values.update(eos_token_id=[7, 8]))
            case _:
                change_json(folder / "config.json", lambda values: values.update(rms_norm_eps=0.5))
        for _ in range(2):
            with pytest.raises(IncompatibleWorkerError, match=f"{name} is .*; allowed: .*started with"):
                llm.wake_up()
            assert llm.is_sleeping
        (folder / "model.safetensors").unlink()
        with pytest.raises(InvalidModelError, match="holds no weights"):
            llm.wake_up()
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        llm.wake_up()
        (after,) = llm.generate(PROMPT, greedy(6), use_tqdm=False)
        assert after.outputs[0].token_ids == before.outputs[0].token_ids


async def test_a_worker_whose_weights_are_others_by_now_sleeps_on_and_says_so(folder: Path) -> None:
    async with operated(split="never", engine={"model": str(folder)}) as site:
        expected, _ = await site.generate()
        await eventually(site.has_settled)
        assert (await site.http.post("/sleep?level=2")).status_code == 200
        change_byte(folder / "model.safetensors")
        response = await site.http.post("/wake_up")
        assert response.status_code == 409
        assert "weights is '" in response.text
        assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": True}
        change_byte(folder / "model.safetensors")
        assert (await site.http.post("/wake_up")).status_code == 200
        assert (await site.generate())[0] == expected


async def test_a_router_of_another_model_costs_the_others_none_of_their_workers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_json(folder / "config.json", lambda values: values.update(rms_norm_eps=1e-6))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving())
        others = await stack.enter_async_context(AsyncExitStack())
        stranger = await others.enter_async_context(serving(model=str(folder)))
        settings = {"also": (stranger.grpc_port,)}
        worker, _ = await stack.enter_async_context(made(Role.MIXED, server.grpc_port, **settings))
        running = asyncio.create_task(worker.run())
        told = f"router 127.0.0.1:{stranger.grpc_port} refuses this worker"
        await until(lambda: told in caplog.text or running.done(), JOINED_WITHIN_S)
        await until(lambda: server._router.is_ready or running.done(), JOINED_WITHIN_S)
        assert server._router.is_ready
        assert not stranger._router.fleet.workers()
        await others.aclose()
        right = await stack.enter_async_context(serving(grpc_port=stranger.grpc_port))
        await until(lambda: right._router.is_ready or running.done(), JOINED_WITHIN_S)
        assert right._router.is_ready
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_every_router_rejects_ends_with_the_reason(folder: Path) -> None:
    change_json(folder / "config.json", lambda values: values.update(rms_norm_eps=1e-6))
    async with serving() as server, serving() as other:
        engine = {"model": str(folder)}
        async with made(Role.MIXED, server.grpc_port, also=(other.grpc_port,), engine=engine) as (worker, _):
            with pytest.raises(IncompatibleWorkerError, match=r"config\.rms_norm_eps"):
                await asyncio.wait_for(worker.run(), JOINED_WITHIN_S)
