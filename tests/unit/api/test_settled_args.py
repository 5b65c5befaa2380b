"""Arguments that the launcher reads for its router and its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.commands.cli_arguments import parse, router_flags, settle, worker_flags


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

    def fetch(
        model: str, *, revision: str, cache_dir: str, token: str | None, allow_patterns: list[str]
    ) -> str:
        asked.append((model, revision, cache_dir, token))
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    args = parse(["serve", "some/model", "--revision", "v1", "--download-dir", "/cache", "--hf-token", "t"])
    settle(args)
    assert asked == [("some/model", "v1", "/cache", "t")]
    assert not [flag for flag in worker_flags(args, num_workers=1) if "hf-token" in flag]
    assert worker_flags(args, num_workers=1)[0] == str(tmp_path)
    assert router_flags(args)[0] == str(tmp_path)
    assert "--served-model-name=some/model" in router_flags(args)
