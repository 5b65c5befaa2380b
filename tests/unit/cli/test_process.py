from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from baton.cli import main
from baton.commands.cli_arguments import parse, process_names
from baton_core.errors import BatonError, IncompatibleWorkerError, InvalidConfigError, InvalidModelError
from baton_service.descriptors import open_standard_files
from baton_service.process import exit_code, exit_without_reader


@pytest.mark.parametrize("kind", [InvalidConfigError, InvalidModelError, IncompatibleWorkerError])
def test_what_a_further_start_would_not_help_has_an_exit_code_of_its_own(kind: type[BatonError]) -> None:
    assert exit_code(kind("said")) == 2


def test_a_broken_pipe_other_than_standard_output_is_not_hushed_up() -> None:
    with pytest.raises(BrokenPipeError, match="of a worker"), exit_without_reader():
        raise BrokenPipeError("of a worker")


def test_standard_output_that_is_full_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended, exit_without_reader():
            sys.stdout.write("an answer")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("variable", ["", "1"])
def test_a_full_standard_output_is_told_buffered_or_not(variable: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            (sys.executable, "-m", "baton", "--version"),
            env={**os.environ, "PYTHONUNBUFFERED": variable},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    message = b"standard output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, message)


def test_what_a_locale_has_no_character_for_is_written_as_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(written := io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    open_standard_files()
    sys.stdout.write("Grüße\n")
    sys.stdout.flush()
    assert written.getvalue() == b"Gr\\xfc\\xdfe\n"


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_command_has_all_standard_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    getattr(sys, name).close()
    assert ended.value.code == 0


def test_a_worker_and_a_router_of_several_processes_have_names_in_the_log() -> None:
    worker = ["decode-worker", "--router", "127.0.0.1:8100"]
    assert process_names(parse([*worker, "--worker-id", "decode-1"])) == {"worker_id": "decode-1"}
    args = parse(worker)
    assert process_names(args) == {"worker_id": args.worker_id}
    assert args.worker_id.startswith("decode-")
    assert process_names(parse(["router", "--group-member", "1:/tmp"])) == {"process": "1"}
    assert process_names(parse(["router"])) == {}
