"""An installation without extras: its commands work, or say in one line which extra they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.commands.cli_arguments import COMMANDS
from baton.config.extras import missing_packages
from tests.packaging.installed import ROOT, SOURCES, Installed, make_environment

SERVE_NEEDS = "httptools, huggingface-hub, jinja2 and 12 more packages: pip install 'baton[router,worker]'"
ROUTER_NEEDS = "httptools, huggingface-hub, jinja2 and 5 more packages: pip install 'baton[router]'"
WORKER_NEEDS = "huggingface-hub, llguidance, numpy and 8 more packages: pip install 'baton[worker]'"
BENCH_NEEDS = "httptools, huggingface-hub, jinja2 and 8 more packages: pip install 'baton[bench]'"
OFFLINE_NEEDS = "httptools, huggingface-hub, jinja2 and 14 more packages: pip install 'baton[bench,worker]'"
LACKING = {
    ("serve",): f"baton serve needs {SERVE_NEEDS}",
    ("serve", "org/model", "--mixed", "2"): f"baton serve needs {SERVE_NEEDS}",
    ("router",): f"baton router needs {ROUTER_NEEDS}",
    ("prefill-worker", "--router", "127.0.0.1:1"): f"baton prefill-worker needs {WORKER_NEEDS}",
    ("decode-worker", "--router", "127.0.0.1:1"): f"baton decode-worker needs {WORKER_NEEDS}",
    ("mixed-worker", "--router", "127.0.0.1:1"): f"baton mixed-worker needs {WORKER_NEEDS}",
    ("bench", "serve"): f"baton bench serve needs {BENCH_NEEDS}",
    ("bench", "sweep"): f"baton bench sweep needs {BENCH_NEEDS}",
    ("bench", "latency"): f"baton bench latency needs {OFFLINE_NEEDS}",
    ("bench", "throughput"): f"baton bench throughput needs {OFFLINE_NEEDS}",
    ("simulate", "--trace", "t.jsonl", "--plot", "p.png"): (
        "baton simulate --plot needs matplotlib: pip install 'baton[simulate]'"
    ),
    ("kv-events", "tcp://127.0.0.1:9"): "baton kv-events needs pyzmq: pip install 'baton[kv-events]'",
}
"""The message of each command."""


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {path for path in (path.partition("/")[2] for path in listed) if path.startswith("baton")}
    assert {path for path in expected if not path.endswith(".py")}, "there are files that are no Python"
    with zipfile.ZipFile(wheel) as archive:
        assert expected - set(archive.namelist()) == set()


def test_version_and_help_of_every_command(core: Installed) -> None:
    version = core.baton("--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("baton ")
    for words in ((), *((command.name,) for command in COMMANDS), ("bench", "serve"), ("admin", "drain")):
        shown = core.baton(*words, "--help")
        assert (shown.returncode, shown.stderr) == (0, ""), words
        assert shown.stdout.startswith(" ".join(("usage: baton", *words)))


def test_as_vllm_runs_programs_that_find_baton_under_that_name(core: Installed) -> None:
    code = "from importlib.metadata import version; import vllm; print(version('vllm'), vllm.EngineArgs)"
    done = core.baton("as-vllm", "python", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "0.32.0+baton <class 'baton.config.engine_args.EngineArgs'>\n",
        "",
    )
    version = core.baton("as-vllm", "sh", "-c", "vllm --version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout == core.baton("--version").stdout


def test_commands_that_compute_nothing_work(core: Installed) -> None:
    simulated = core.baton("simulate", "--seeds", "2")
    assert (simulated.returncode, simulated.stderr) == (0, "")
    assert "requests finished" in simulated.stdout
    described = core.baton("collect-env")
    assert (described.returncode, described.stderr) == (0, "")


@pytest.mark.parametrize("args", LACKING, ids=" ".join)
def test_a_command_says_in_one_line_which_extra_it_needs(core: Installed, args: tuple[str, ...]) -> None:
    done = core.baton(*args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{LACKING[args]}\n")


@pytest.mark.parametrize("name", ["LLM", "LLMEngine", "AsyncLLMEngine"])
def test_engines_raise_an_import_error_with_the_same_line(core: Installed, name: str) -> None:
    code = f"try:\n    from baton import {name}\nexcept ImportError as error:\n    print(error)"
    done = core.run(str(core.python), "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"baton.{name} needs {SERVE_NEEDS}\n", "")


@pytest.fixture(scope="module")
def router() -> Iterator[dict[str, str]]:
    """The addresses of a router that has no workers."""
    read_fd, write_fd = os.pipe()
    ports = ("--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd), "--log-level", "error")
    process = subprocess.Popen([sys.executable, "-m", "baton", "router", *ports], pass_fds=(write_fd,))
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        yield json.loads(pipe.readline())
    process.terminate()
    assert process.wait(20) == 0


def test_clients_reach_a_router(core: Installed, router: dict[str, str]) -> None:
    grpc, http = ("--address", router["address"]), ("--address", router["http_address"])
    asked = core.baton("complete", "Hello", *grpc)
    assert (asked.returncode, asked.stdout) == (1, "> Hello\n\n")
    assert asked.stderr == "baton complete: no decode worker is registered\n"
    chat = core.baton("chat", *grpc)
    assert (chat.returncode, chat.stdout, chat.stderr) == (0, "", "")
    workers = core.baton("admin", "workers", *grpc)
    assert (workers.returncode, workers.stderr) == (0, "")
    explained = core.baton("explain", "req-1", *http)
    assert (explained.returncode, explained.stderr.count("\n")) == (1, 1)


def test_the_command_that_is_told_installs_what_is_missing(wheel: Path, tmp_path: Path) -> None:
    installed = make_environment(tmp_path / "venv")
    installed.install(str(wheel))
    version = installed.baton("--version").stdout
    installed.install("baton[kv-events]")
    follower = ("kv-events", "tcp://127.0.0.1:9")
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for a worker that is not there
        installed.run(str(installed.folder / "bin" / "baton"), *follower, within_s=5.0)
    assert installed.baton("--version").stdout == version


def test_packages_of_extras_within_extras_are_missed(core: Installed) -> None:
    code = "from baton.config.extras import missing_packages as m; print(*m('all'), *m('tracing'))"
    missing = core.run(str(core.python), "-c", code).stdout.split()
    assert {"torch", "jinja2", "transformers", "aiohttp", "opentelemetry-sdk"} <= set(missing)
    assert missing_packages("all") == [], "the environment of the tests has them"
