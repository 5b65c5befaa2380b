from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from baton.cli import main
from baton.commands import environment_report
from baton.commands.environment_report import environment_lines


def test_secrets_are_left_out() -> None:
    environment = {
        "BATON_API_KEY": "abc123",
        "HF_TOKEN": "hf_abcdefghijkl",
        "BATON_REDIS_URL": "redis://user:hunter2@host:6379/0",
        "BATON_NOTE": "uses hf_abcdefghijkl",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SHELL": "/bin/sh",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert list(environment_lines(environment)) == [
        "BATON_API_KEY: (redacted)",
        "BATON_NOTE: uses (redacted)",
        "BATON_REDIS_URL: redis://(redacted)@host:6379/0",
        "CUDA_VISIBLE_DEVICES: 0,1",
        "HF_TOKEN: (redacted)",
        "OMP_NUM_THREADS: 4",
    ]


def test_a_section_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_files(self: Path, *args: object, **kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", no_files)
    monkeypatch.setattr(environment_report, "version", lambda name: "1.2.3")
    report = environment_report.environment_report()
    assert "cpu\n  unknown (PermissionError: " in report
    assert "  torch: 1.2.3\n" in report
    titles = [line for line in report.splitlines() if line and not line.startswith(" ")]
    expected = ["system", "cpu", "memory and limits", "packages", "cuda", "compilers", "environment"]
    assert titles == expected


def test_a_terminal_without_a_letter_shows_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(environment_report, "environment_report", lambda: "HF_HOME: /\xe9/\udcff\n")
    assert main(["collect-env"]) == 0
    terminal.seek(0)
    assert terminal.read() == "HF_HOME: /\\xe9/\\udcff\n"
