"""Files that `baton bench` writes, of measurements that are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from baton.cli import main
from baton.commands import bench
from baton_bench.serving import Measured
from tests.unit.baton_bench.answers import make_answer, make_run


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure_server(*_: object) -> Measured:
        return Measured(run=make_run(make_answer(), make_answer()), model="m", tokenizer="")

    monkeypatch.setattr(bench, "measure_server", measure_server)


def test_a_sweep_keeps_the_folder_of_its_files_and_one_file_for_each_point(tmp_path: Path) -> None:
    flags = ["--request-rates", "50", "1e3", "50", "--save-result", "--disable-tqdm"]
    assert main(["bench", "sweep", *flags, "--result-filename", str(tmp_path / "sub" / "x.json")]) == 0
    assert {path.name for path in (tmp_path / "sub").iterdir()} == {
        "x-50qps-any.json",
        "x-1000qps-any.json",
        "x-50qps-any-2.json",
    }


def test_a_result_tells_how_many_requests_were_sent(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    flags = ["--num-prompts", "1000", "--save-result", "--disable-tqdm", "--result-filename", str(path)]
    assert main(["bench", "serve", *flags]) == 0
    assert json.loads(path.read_text())["num_prompts"] == 2


def test_results_are_appended_as_lines_or_take_the_place_of_others(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    command = ["bench", "serve", "--disable-tqdm", "--result-filename", str(path)]
    for flag, num_lines in (("--append-result", 1), ("--append-result", 2), ("--save-result", 1)):
        assert main([*command, flag]) == 0
        assert len([json.loads(line) for line in path.read_text().splitlines()]) == num_lines


def test_a_result_is_a_line_of_its_own_behind_a_file_that_ends_amid_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    flags = ["--disable-tqdm", "--append-result", "--result-filename", str(path)]
    assert main(["bench", "serve", *flags]) == 0
    assert [len(json.loads(line)) > 1 for line in path.read_text().splitlines()] == [False, True]


def test_flags_of_files_that_are_not_written_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--disable-tqdm", "--save-detailed", "--result-filename", "x.json"]
    assert main(["bench", "serve", *flags]) == 0
    assert (
        "without --save-result, --save-detailed, --result-filename write nothing\n" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "command",
    [["serve", "--num-prompts", "9"], ["sweep", "--request-rates", "50", "60", "--num-prompts", "9"]],
)
def test_an_interrupted_run_prints_the_figures_so_far_and_writes_none(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure_server(*_: object) -> Measured:
        run = replace(make_run(make_answer(), make_answer()), is_whole=False)
        return Measured(run=run, model="m", tokenizer="")

    monkeypatch.setattr(bench, "measure_server", measure_server)
    flags = ["--disable-tqdm", "--save-result", "--result-dir", str(tmp_path)]
    assert main(["bench", *command, *flags]) == 130
    told = capsys.readouterr()
    assert "Successful requests:                     2" in told.out
    assert "interrupted: these are the figures of 2 of up to 9 requests" in told.err
    assert not list(tmp_path.iterdir())
