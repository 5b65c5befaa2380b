"""Every program of `bench` starts as a module from the repository's root, and explains itself."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WITHOUT_HELP = {"bench.peer.guardian"}
"""It passes all of its arguments on to the command that it guards."""


def programs() -> list[str]:
    paths = (path.relative_to(ROOT) for path in sorted((ROOT / "bench").rglob("*.py")))
    modules = (".".join(path.with_suffix("").parts) for path in paths if is_program(ROOT / path))
    return [name.removesuffix(".__main__") for name in modules if name not in WITHOUT_HELP]


def is_program(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text()


@pytest.mark.parametrize("module", programs())
def test_a_program_shows_its_help(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    for name in (module, f"{module}.__main__"):  # runpy warns of a module that another test has imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("bench.autoscaling", "/nowhere", "trace is '/nowhere'; allowed: a readable file"),
        ("bench.autoscaling", "/nowhere --hardware z80", "hardware is 'z80'; allowed: b200"),
        ("bench.autoscaling", "/nowhere --tokens-per-step 0", "tokens_per_step is 0; allowed: over 0"),
        ("bench.autoscaling", "/nowhere --ttft 0", "ttft is 0.0; allowed: over 0"),
        ("bench.autoscaling", "/nowhere --jobs 0", "jobs is 0; allowed: over 0"),
        ("bench.autoscaling", "/nowhere --hours 0", "hours is 0; allowed: over 0"),
        ("bench.autoscaling", "/nowhere --fixed 2X", "workers is '2X'; allowed: counts"),
        ("bench.directions", "--chat /nowhere --conversations x", "trace is '/nowhere'; allowed: a readable"),
    ],
)
def test_settings_are_refused_before_anything_is_simulated(
    module: str,
    arguments: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [module, *arguments.split()])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
