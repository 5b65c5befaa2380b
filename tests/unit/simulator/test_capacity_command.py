"""`baton simulate --trace`, from the command line to the tables, the JSON and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from baton.cli import main
from baton_simulator.capacity import plots
from tests.unit.simulator.capacity_fleets import make_requests

pytestmark = pytest.mark.slow

PROFILE = str(Path(__file__).parents[3] / "bench" / "timings" / "small_cpu.json")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    requests = make_requests(6, prompt=700, output=4, every_ms=400)
    path.write_bytes(b"\n".join(msgspec.json.encode(request) for request in requests))
    return str(path)


def test_the_answer_is_told_in_tables_and_written_as_json(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answer.json"
    flags = ["--workers", "1P:1D", "--hardware", PROFILE, "--slo", "ttft=500ms,tpot=1"]
    assert main(["simulate", "--trace", trace, *flags, "--requests", "5", "--json", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1P:1D workers of timer calibrated on a measured run")
    assert "SLO: TTFT within 0.5 s and TPOT within 1 s." in told.out
    assert told.err == "simulating 1P:1D\n"
    row = json.loads(path.read_text())["rows"]["1P:1D"]
    assert (row["num_requests"], row["num_failed"], row["attainment"]) == (5, 0, 1.0)
    assert f" {row['goodput_per_s']:.2f} |" in told.out
    assert row["ttft"]["p50_s"] < row["e2e"]["p50_s"]


def test_a_sweep_names_the_best_and_is_drawn(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "answer.png"
    flags = [
        "--workers",
        "2M",
        "--hardware",
        PROFILE,
        "--sweep",
        "ratio",
        "--plot",
        str(path),
        "--speedup",
        "0.04",
    ]
    assert main(["simulate", "--trace", trace, *flags]) == 0
    told = capsys.readouterr().out
    assert "arrivals 0.04 times as fast" in told
    assert "\nHighest goodput: " in told
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_fleet_that_serves_nothing_has_no_latencies(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", trace, "--hardware", PROFILE, "--kv-tokens", "64"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "| 1P:1D " + "| - " * 12 + "|" in told
    assert "1P:1D: 6 failed, such as: the request needs 704 tokens;" in told


def test_answers_of_one_token_have_no_time_of_a_token(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", trace, "--hardware", PROFILE, "--output-divisor", "4"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cell == "-" for cell in cells] == [False] * 5 + [True] * 4 + [False] * 4


def test_a_loss_is_compared_with_none(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    loss = ["--hardware", PROFILE, "--kv-tokens", "9999", "--lose", "50%", "--lose-at", "1"]
    assert main(["simulate", "--trace", trace, "--workers", "2P:2D", *loss]) == 0
    told = capsys.readouterr().out
    assert "| none lost " in told
    assert "| 50% lost at 1 s, from then on |" in told


def test_a_picture_needs_its_library(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert main(["simulate", "--trace", trace, "--plot", "answer.png"]) == 2
    assert "--plot is 'answer.png'; allowed: nothing without matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--slo", "ttft=0"), "--slo is 'ttft=0'; allowed: seconds or ms such as ttft=2,tpot=50ms"),
        (("--slo", "e2e=3"), "--slo is 'e2e=3'; allowed"),
        (("--workers", "2Q"), "--workers is '2Q'; allowed: counts with P, D and M"),
        (("--divisor", "100"), "--divisor is 100; allowed: a divisor of 512"),
        (("--lose", "rack-8"), "--lose is 'rack-8'; allowed: rack-0 to rack-1"),
        (("--lose", "1P", "--sweep", "ratio"), "--sweep is 'ratio'; allowed: nothing beside --lose"),
        (("--lose", "1P", "--lose-at", "99"), "--lose-at is 99; allowed: up to 2."),
        (("--lose-at", "1"), "--lose-at is 1.0; allowed: nothing without --lose"),
        (("--racks", "4"), "--racks is 4; allowed: nothing without --lose"),
        (("--sweep", "load", "--ratios", "3"), "--ratios is 3; allowed: nothing without --sweep ratio"),
        (("--enforce-slo",), "--enforce-slo is True; allowed: nothing without --slo"),
        (
            ("--hardware", PROFILE, "--tensor-parallel-size", "2"),
            "--tensor-parallel-size is 2; allowed: nothing with a file as --hardware",
        ),
        (("--hardware", "z80"), "--hardware is 'z80'; allowed: b200"),
        (("--json", "/nowhere/answer.json"), "--json is '/nowhere/answer.json'; allowed"),
        (("--json", "/tmp"), "--json is '/tmp'; allowed: a file that can be written (it is a folder)"),
        (("--json", "/dev/full"), "--json is '/dev/full'; allowed: a file that can be written (No space"),
        (("--trace", "/nowhere"), "--trace is '/nowhere'; allowed: a readable file"),
        (("--speedup", "0"), "--speedup is 0.0; allowed"),
        (("--seeds", "3"), "--seeds is 3; allowed: nothing beside --trace"),
        (("--no-sessions", "--story"), "--story is True; allowed: nothing beside --trace"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    trace: str, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", trace, *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--workers", "2P:2D"), ("--no-sessions", None), ("--plot", "x.png")]
)
def test_flags_of_a_trace_are_refused_without_one(
    flag: str, value: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--seeds", "1", flag, *([value] if value else [])]) == 2
    name = flag.replace("--no-", "--")
    assert f"{name} is {value or False!r}; allowed: nothing without --trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--story", "--story is True; allowed: nothing without --seed"),
        ("--seed 1 --seeds 5", "--seeds is 5; allowed: nothing beside --seed"),
        ("--seed 1 --first 5", "--first is 5; allowed: nothing beside --seed"),
    ],
)
def test_flags_of_one_seed_and_of_many_are_told_apart(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *flags.split()]) == 2
    assert said in capsys.readouterr().err
