"""Extras that flags ask for, in an environment that lacks some packages."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pytest

from baton.config import extras
from baton.config.extras import MissingExtraError, check_extras, require_extras

REQUIREMENTS = [
    "grpcio<2,>=1.80",
    'jinja2>=3.1.6; extra == "router"',
    'torch<2.14,>=2.11; extra == "worker"',
    'opentelemetry-sdk<2,>=1.40; extra == "tracing"',
    'matplotlib<4,>=3.9; extra == "simulate"',
    'aiohttp<4,>=3.12; extra == "bench"',
    'baton[router]; extra == "bench"',
    'baton[bench,worker]; extra == "all"',
    'nixl-cu12>=1.5.1; extra == "nixl"',
]
ROOT = Path(__file__).parents[3]


def test_the_table_of_extras_is_whole() -> None:
    extras_of_package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    table = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/installation.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(extras_of_package)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are not installed; nothing at first."""
    missing: set[str] = set()
    monkeypatch.setattr(extras, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(extras, "_is_installed", lambda name: name not in missing)
    monkeypatch.setattr(extras, "_OF_COMMAND", {"serve": ("router", "worker"), "bench serve": ("bench",)})
    return missing


def refusal(**values: object) -> str:
    with pytest.raises(MissingExtraError) as raised:
        check_extras(argparse.Namespace(**values))
    return str(raised.value)


def test_nothing_is_asked_for_where_all_is_installed(lacking: set[str]) -> None:
    check_extras(
        argparse.Namespace(command="serve", otlp_traces_endpoint="http://127.0.0.1:4317", plot="a.png")
    )
    lacking.update({"torch", "matplotlib", "opentelemetry-sdk"})
    check_extras(argparse.Namespace(command="simulate", otlp_traces_endpoint="", plot=""))


def test_only_the_extras_that_lack_something_are_named(lacking: set[str]) -> None:
    lacking.add("torch")
    assert refusal(command="serve") == "baton serve needs torch: pip install 'baton[worker]'"


def test_flags_need_extras_of_their_own(lacking: set[str]) -> None:
    lacking.update({"matplotlib", "opentelemetry-sdk"})
    plot = refusal(command="bench", benchmark="serve", plot="a.png")
    assert plot == "baton bench serve --plot needs matplotlib: pip install 'baton[simulate]'"
    traces = refusal(command="serve", otlp_traces_endpoint="http://127.0.0.1:4317")
    expected = "baton serve --otlp-traces-endpoint needs opentelemetry-sdk: pip install 'baton[tracing]'"
    assert traces == expected


def test_one_build_of_nixl_is_enough(lacking: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lacking.add("nixl-cu12")
    monkeypatch.setattr("baton_kv.nixl_library.find_build", lambda: "nixl_cu13")
    check_extras(argparse.Namespace(command="serve", kv_transport="nixl"))
    monkeypatch.setattr("baton_kv.nixl_library.find_build", lambda: None)
    expected = "baton serve --kv-transport nixl needs nixl-cu12 or nixl-cu13: pip install 'baton[nixl]'"
    assert refusal(command="serve", kv_transport="nixl") == expected


def test_an_extra_has_the_packages_of_those_within_it(lacking: set[str]) -> None:
    lacking.update({"jinja2", "aiohttp", "torch"})
    with pytest.raises(MissingExtraError) as raised:
        require_extras("baton.LLM", "all")
    assert str(raised.value) == "baton.LLM needs aiohttp, jinja2, torch: pip install 'baton[all]'"
