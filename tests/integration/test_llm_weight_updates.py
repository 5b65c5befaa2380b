"""`LLM` computes with new weights exactly as one that was started with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton import LLM
from baton.vllm_alias.weight_transfer import WeightTransferInitRequest
from baton_core.errors import (
    BatonError,
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
    RequestError,
)
from baton_worker.engine.resident_engine import ResidentEngine
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that differ by noise on their weights."""
    folder = tmp_path_factory.mktemp("models")
    old = make_model(folder / "old", "llama")
    new = Path(shutil.copytree(old, folder / "new"))
    noise = torch.Generator().manual_seed(1)
    tensors = load_file(new / "model.safetensors")
    changed = {name: one + 0.1 * torch.randn(one.shape, generator=noise) for name, one in tensors.items()}
    save_file(changed, new / "model.safetensors", {"format": "pt"})
    return old, new


@pytest.fixture
def llm(folders: tuple[Path, Path]) -> Iterator[LLM]:
    with LLM.from_engine_args(tiny_args(folders[0])) as llm:
        yield llm


def tokens(llm: LLM) -> tuple[int, ...]:
    (output,) = llm.generate(PROMPT, greedy(8), use_tqdm=False)
    return tuple(output.outputs[0].token_ids)


def tokens_of(folder: Path, **changes: Any) -> tuple[int, ...]:
    with LLM.from_engine_args(tiny_args(folder, **changes)) as llm:
        return tokens(llm)


def update(llm: LLM, **info: Any) -> None:
    llm.init_weight_transfer_engine({"init_info": {}})
    llm.start_weight_update()
    llm.update_weights({"update_info": info})
    llm.finish_weight_update()


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_the_weights_of_a_folder_compute_as_if_it_had_started_with_them(
    folders: tuple[Path, Path], quantization: str | None
) -> None:
    old, new = folders
    expected = tokens_of(new, quantization=quantization)
    with LLM.from_engine_args(tiny_args(old, quantization=quantization)) as llm:
        assert tokens(llm) != expected
        update(llm, path=str(new))
        assert tokens(llm) == expected
        update(llm, path=str(old))
        assert tokens(llm) != expected


def test_tensors_come_in_parts_and_are_read_again_after_a_sleep(llm: LLM, folders: tuple[Path, Path]) -> None:
    tensors = list(load_file(folders[1] / "model.safetensors").items())
    llm.start_weight_update(True)
    llm.update_weights({"update_info": {"tensors": tensors[:3]}})
    llm.update_weights({"update_info": {"tensors": dict(tensors[3:])}})
    llm.finish_weight_update("step-1")
    assert llm.get_weight_version() == "step-1"
    llm.update_weight_version("step-1b")
    assert llm.get_weight_version() == "step-1b"
    expected = tokens_of(folders[1])
    assert tokens(llm) == expected
    llm.sleep(2)
    llm.wake_up()
    assert tokens(llm) == expected


def test_an_update_that_changes_nothing_is_read_again_after_a_sleep(
    llm: LLM, folders: tuple[Path, Path]
) -> None:
    tensors = load_file(folders[1] / "model.safetensors")
    for _ in range(2):
        update(llm, tensors=tensors)
    expected = tokens(llm)
    llm.sleep(2)
    llm.wake_up()
    assert tokens(llm) == expected


def test_a_trainer_gives_tensors_one_by_one_to_the_model_that_it_sees(
    llm: LLM, folders: tuple[Path, Path]
) -> None:
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    old, new = (load_file(folder / "model.safetensors") for folder in folders)
    before = tokens(llm)
    for name, tensor in new.items():
        assert model.load_weights([(name, tensor)]) == {name}
        tensor.zero_()
    assert tokens(llm) == tokens_of(folders[1])
    llm.sleep(2)
    llm.wake_up(tags=["weights"])
    for name, tensor in [*new.items(), *old.items()]:
        model.load_weights([(name, tensor)])
    assert llm.reset_prefix_cache()
    llm.wake_up(tags=["kv_cache"])
    assert tokens(llm) == before
    model.load_weights([("model.norm.weight", old["model.norm.weight"])])
    with pytest.raises(InvalidModelError):
        llm.reset_prefix_cache()
    assert tokens(llm) == before


def test_what_is_enqueued_ends_on_the_old_weights_and_no_block_of_them_is_used_again(
    llm: LLM, folders: tuple[Path, Path]
) -> None:
    expected = tokens(llm)
    llm.enqueue(PROMPT, greedy(8))
    update(llm, path=str(folders[1]))
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert tuple(output.outputs[0].token_ids) == expected
    (output,) = llm.generate(PROMPT, greedy(8), use_tqdm=False)
    assert output.num_cached_tokens == 0
    assert tuple(output.outputs[0].token_ids) == tokens_of(folders[1])


def refused_tensors(tensors: dict[str, Tensor]) -> list[tuple[Any, type[Exception], str]]:
    name = "model.norm.weight"
    lacking = {other: tensor for other, tensor in tensors.items() if other != name}
    return [
        (lacking, InvalidModelError, f"tensor {name} is missing"),
        ({**tensors, name: torch.zeros(3)}, InvalidModelError, f"tensor {name} has shape"),
        ({**tensors, name: tensors[name] / 0}, InvalidModelError, f"tensor {name} holds NaN or an infinity"),
        ({**tensors, name: tensors[name].double()}, InvalidModelError, f"tensor {name} has dtype F64"),
        ({name: [1.0]}, InvalidRequestError, f"tensors is .*{name}.*: list"),
    ]


def test_tensors_that_do_not_fit_are_refused_and_the_old_weights_stay(
    llm: LLM, folders: tuple[Path, Path]
) -> None:
    expected = tokens(llm)
    for tensors, kind, message in refused_tensors(load_file(folders[1] / "model.safetensors")):
        with pytest.raises(kind, match=message):
            update(llm, tensors=tensors)
        assert tokens(llm) == expected
    assert llm.get_weight_version() == "default"
    llm.start_weight_update()
    llm.update_weights({"update_info": {"path": str(folders[1])}})
    with pytest.raises(InvalidModelError, match="is missing; allowed: an existing folder"):
        llm.update_weights({"update_info": {"path": str(folders[1] / "nowhere")}})
    with pytest.raises(BatonError, match="is without weights; allowed: update_weights before"):
        llm.finish_weight_update("not there")
    assert llm.get_weight_version() == "default"


def test_a_switch_that_fails_behind_a_step_in_flight_leaves_the_engine_at_work(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    lost = Path(shutil.copytree(folders[1], tmp_path / "lost"))
    with LLM.from_engine_args(tiny_args(folders[0], async_scheduling=True)) as llm:
        expected = tokens(llm)
        llm.start_weight_update()
        llm.update_weights({"update_info": {"path": str(lost)}})
        shutil.rmtree(lost)
        llm.llm_engine.add_request("left", PROMPT, greedy(40))
        for _ in range(4):
            llm.llm_engine.step()
        llm.llm_engine.abort_request("left")
        with pytest.raises(InvalidModelError, match="is missing; allowed: an existing folder"):
            llm.finish_weight_update()
        assert tokens(llm) == expected


def test_after_a_switch_without_room_for_the_pool_it_wakes_up_with_the_new_weights(
    llm: LLM, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise InvalidConfigError("no room")

    tokens(llm)
    with monkeypatch.context() as patch:
        patch.setattr(ResidentEngine, "_start", fail)
        with pytest.raises(InvalidConfigError, match="no room"):
            update(llm, path=str(folders[1]))
    with pytest.raises(RequestError, match="the engine sleeps without kv_cache; allowed: wake_up first"):
        tokens(llm)
    assert llm.wake_up()
    assert tokens(llm) == tokens_of(folders[1])
    llm.finish_weight_update()
    assert tokens(llm) == tokens_of(folders[1])


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_weights_change_before_the_kv_cache_is_back(
    folders: tuple[Path, Path], tensor_parallel_size: int
) -> None:
    args = tiny_args(folders[0], tensor_parallel_size=tensor_parallel_size)
    with LLM.from_engine_args(args) as llm:
        tokens(llm)
        llm.sleep(2)
        with pytest.raises(RequestError, match="sleeps without kv_cache and weights; allowed: wake_up first"):
            update(llm, path=str(folders[1]))
        assert not llm.wake_up(["weights"])
        update(llm, path=str(folders[1]))
        with pytest.raises(RequestError, match="the engine sleeps"):
            tokens(llm)
        assert llm.wake_up(["kv_cache"])
        assert tokens(llm) == tokens_of(folders[1])


def test_weights_without_an_update_are_refused(llm: LLM, folders: tuple[Path, Path]) -> None:
    for info in ({"path": str(folders[1])}, {"tensors": {"a": torch.zeros(1)}}):
        with pytest.raises(BatonError, match="allowed: start_weight_update first"):
            llm.update_weights({"update_info": info})
    with pytest.raises(BatonError, match="allowed: start_weight_update first"):
        llm.finish_weight_update()


def test_a_name_that_comes_twice_in_an_update_is_refused(llm: LLM) -> None:
    llm.start_weight_update()
    llm.update_weights({"update_info": {"tensors": {"a": torch.zeros(1)}}})
    with pytest.raises(InvalidRequestError, match="each once in an update"):
        llm.update_weights({"update_info": {"tensors": {"a": torch.zeros(1)}}})


def test_requests_of_vllms_classes_are_read_and_other_ways_of_the_weights_refused(llm: LLM) -> None:
    nccl = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
    with pytest.raises(InvalidRequestError, match="neither NCCL nor IPC"):
        llm.init_weight_transfer_engine(WeightTransferInitRequest(nccl))
    with pytest.raises(InvalidRequestError, match="an object whose update_info is an object"):
        llm.update_weights({"init_info": {}})
    with pytest.raises(InvalidRequestError, match="is_checkpoint_format is False; allowed: True"):
        llm.start_weight_update(is_checkpoint_format=False)
    with pytest.raises(InvalidConfigError, match="start_draft_weight_update is not supported: the weights"):
        llm.start_draft_weight_update()
    llm.shutdown_weight_transfer_engine()
