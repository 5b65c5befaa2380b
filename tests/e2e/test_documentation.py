"""Every example of README.md and of the pages for users, run as it is written.

Python and curl examples speak to a served cluster in the place of the documented addresses. Commands that
install, or that serve until they are told to stop, are parsed with the real command line instead of run.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.commands import cli_arguments
from tests.e2e.processes import Cluster

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/quickstart.md",
    "docs/coming_from_vllm.md",
    "docs/deploying.md",
    "docs/api.md",
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVING = ("serve", "router", "prefill-worker", "decode-worker", "mixed-worker")
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
WITHIN_S = 250.0


@dataclass(frozen=True, slots=True)
class Example:
    document: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}-{self.number}"


def examples(*languages: str) -> list[Example]:
    found = []
    for document in DOCUMENTS:
        blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
        found += [Example(document, number, *block) for number, block in enumerate(blocks)]
    return [example for example in found if example.language in languages]


def addressed(text: str, cluster: Cluster) -> str:
    """The example with the cluster's addresses in the place of the default ones."""
    text = re.sub(r"(localhost|127\.0\.0\.1):8000", cluster.http_address, text)
    return re.sub(r"(localhost|127\.0\.0\.1):8100", cluster.address, text)


def commands_of(example: Example) -> list[list[str]]:
    lines = example.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.split("#")[0].strip()]


RUN_IN_TURN = """
import contextlib, io, json, runpy, sys, traceback
results = []
for script in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            runpy.run_path(script, run_name="__main__")
            error = ""
        except BaseException:
            error = traceback.format_exc()
    results.append((shown.getvalue(), error))
json.dump(results, sys.stdout)
"""
"""One process for all scripts: it loads torch and clients only once."""


@pytest.fixture(scope="module")
def ran(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return the output of each Python example, with its traceback if it failed."""
    folder = tmp_path_factory.mktemp("examples")
    names = [str(example) for example in examples("python")]
    scripts = [folder / f"{name.replace('/', '-')}.py" for name in names]
    for script, example in zip(scripts, examples("python"), strict=True):
        script.write_text(addressed(example.text, cluster), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN_IN_TURN, json.dumps([str(script) for script in scripts])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("example", examples("python"), ids=str)
def test_python_examples_run(example: Example, ran: dict[str, tuple[str, str]]) -> None:
    shown, error = ran[str(example)]
    assert not error, f"{example.text}\n{error}"
    assert shown.strip(), "an example shows something"


@pytest.mark.parametrize("example", examples("sh"), ids=str)
def test_commands_run_or_are_understood(example: Example, cluster: Cluster) -> None:
    for command in commands_of(example):
        program, *arguments = command
        if program == "make":
            targets = {word for word in arguments if "=" not in word}
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
        elif program == "docker":
            assert arguments[0] == "compose"
            assert all((ROOT / word).is_file() for word in arguments if word.endswith(".yaml"))
        elif program == "pip":
            extras = set(re.findall(r"\[(\w+)\]", " ".join(arguments)))
            assert extras <= EXTRAS
            assert arguments[0] == "install"
        elif program == "curl":
            done = subprocess.run(
                [addressed(word, cluster) for word in [*command, "-sS", "--fail-with-body"]],
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip()
        else:
            assert program.removeprefix(".venv/bin/") == "baton", f"how to test {command}?"
            _check_baton(arguments, cluster)


def _check_baton(arguments: list[str], cluster: Cluster) -> None:
    if arguments[0] in (*SERVING, "chat"):
        given = [word for word in arguments if word not in ("MODEL", "[MODEL]")]
        assert cli_arguments.parse(given).command == arguments[0]
        return
    client = ("--address", cluster.address) if arguments[0] == "complete" else ()
    done = subprocess.run(
        [sys.executable, "-m", "baton", *arguments, *client],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
