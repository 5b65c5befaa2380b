"""Each rank's process sees the GPU that it computes on alone."""

from __future__ import annotations

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_engine.device import require_gpus
from baton_worker.ranks.executor_settings import environment_of_gpu, visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("seen", "number", "expected"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("4, 6", 1, "6"),
        ("GPU-ab,GPU-cd", 0, "GPU-ab"),
        ("4", 1, ""),
        ("", 0, ""),
    ],
)
def test_a_process_sees_one_of_those_that_its_starter_sees(
    seen: str | None, number: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if seen is not None:
        monkeypatch.setenv(VISIBLE, seen)
    monkeypatch.setenv("OTHER", "kept")
    environment = environment_of_gpu(number, visible_gpus())
    assert (environment[VISIBLE], environment["OTHER"]) == (expected, "kept")


def test_no_gpus_and_all_gpus_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert visible_gpus() is None
    monkeypatch.setenv(VISIBLE, "")
    assert visible_gpus() == []


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_gpus("cpu", 64)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_gpus("cuda", 2)
    said = "device is 'auto', with 4 ranks of a model on this machine; allowed: at most 2"
    with pytest.raises(InvalidConfigError, match=said):
        require_gpus("auto", 4)
