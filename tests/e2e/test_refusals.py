"""Baton refuses bad settings at its start with exit code 2 and an error that names field, value, allowed.

Further starts would not help, so nothing is started again and nothing goes on running.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from baton.commands.cli_arguments import BUNDLED_MODEL
from baton_kernels.cpu.variants import VARIANTS, cpu_flags
from tests.e2e.processes import BATON, ONE_MIXED

REFUSED_WITHIN_S = 250.0
EXIT_BAD_CONFIG = 2


def refusal(*arguments: str) -> str:
    """Run a command that ends by itself with the exit code of a refusal; returns what it said."""
    ended = subprocess.run(
        [*BATON, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=REFUSED_WITHIN_S,
        check=False,
    )
    assert ended.returncode == EXIT_BAD_CONFIG, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def refusals(*commands: tuple[str, ...]) -> list[str]:
    """As `refusal`, but of several commands that one process runs in turn: it loads torch only once."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN_IN_TURN, json.dumps(commands)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=REFUSED_WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    codes, said = zip(*json.loads(ended.stdout), strict=True)
    assert codes == (EXIT_BAD_CONFIG,) * len(commands), said
    return list(said)


RUN_IN_TURN = """
import contextlib, io, json, sys
from baton.cli import main
results = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
    results.append((code, said))
json.dump([(code, said.getvalue()) for code, said in results], sys.stdout)
"""


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal("serve", "--port", port)
    named = f"address of --host and --port is '127.0.0.1:{port}', which cannot be bound"
    assert f"{named} (Address already in use); allowed: host:port with" in said
    assert "a port that is not in use" in said


def test_a_grpc_port_in_use_is_told_once_and_by_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal("serve", "--port", "0", "--grpc-port", port)
    (line,) = said.splitlines()
    named = f"address of --grpc-host and --grpc-port is '127.0.0.1:{port}', which cannot be bound"
    assert f"{named} (Address already in use); allowed: host:port with" in line


def test_a_setting_that_the_router_refuses_before_it_listens_is_told_in_one_line() -> None:
    expected = {
        ("--port", "18000", "--grpc-port", "18000"): "--grpc-port is 18000; allowed: another one than --port",
        ("--router-processes", "2", "--redis", "http://x"): "--redis is a URL that has none of these schemes",
    }
    for flags, part in expected.items():
        (line,) = refusal("serve", *flags).splitlines()
        assert part in line


def test_settings_of_workers_are_refused_before_anything_is_started() -> None:
    expected = {
        ("--dtype", "int8"): "--dtype is 'int8'; allowed: auto, float32, bfloat16",
        ("--max-num-partial-prefills", "2", "--max-long-partial-prefills", "3"): (
            "--max-long-partial-prefills is 3; allowed: 1 to 2"
        ),
    }
    lacking = [variant.name for variant in VARIANTS if not variant.needs <= cpu_flags()]
    for name in lacking[:1]:
        expected["--cpu-kernels", name] = f"--cpu-kernels is '{name}'; allowed on this CPU: auto, "
    commands = [("serve", "--port", "0", "--grpc-port", "0", *flags) for flags in expected]
    for part, said in zip(expected.values(), refusals(*commands), strict=True):
        assert part in said
        assert len(said.splitlines()) == 1


def test_a_model_that_is_not_there() -> None:
    ports = ("--port", "0", "--grpc-port", "0")
    assert "model is '/no/such/model'" in refusal("serve", "/no/such/model", *ports)


def test_wrong_flags() -> None:
    expected = {
        ("serve", "--port", "99999"): "--port is 99999; allowed: an integer from 0 to 65535",
        ("serve", "--request-timeout", "0"): "--request-timeout is 0.0; allowed: a finite number over 0",
        ("serve", "--split", "sometimes"): "--split is 'sometimes'; allowed: auto, always, never",
        ("serve", "--block-size", "many"): "--block-size is 'many'; allowed: an integer from 1",
        ("serve", "--prefill-workers", "0"): (
            "--prefill-workers and --mixed are 0; allowed: one of them over 0"
        ),
        ("serve", "--decode-workers", "0"): (
            "--decode-workers and --mixed are 0; allowed: one decoding worker"
        ),
        ("serve", "--mixed", "-1"): "--mixed is -1; allowed: an integer from 0",
        ("serve", "--exit-with-stdin"): (
            "--exit-with-stdin is given, but standard input is a file; allowed:"
        ),
        ("serve", "--no-such-flag"): "unrecognized arguments: --no-such-flag",
        (): "the following arguments are required: COMMAND",
    }
    for part, said in zip(expected.values(), refusals(*expected), strict=True):
        assert part in said


def drop_weights(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return f"{folder} holds no weights; allowed: model.safetensors, or shards with"


def truncate_weights(folder: Path) -> str:
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    return f"{weights} holds {size - 1} bytes; allowed: {size}, which its header announces"


def change_architecture(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    changed = config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(changed))
    return "has a convolution over tokens"


def break_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return f"{folder / 'config.json'} "


def test_wrong_flags_and_damaged_models_of_a_worker(tmp_path: Path) -> None:
    flags = {
        "--num-threads -1": "--num-threads is -1; allowed: an integer from 0",
        "--max-num-seqs 0": "--max-num-seqs is 0; allowed: an integer from 1",
        "--dtype int8": "--dtype is 'int8'; allowed: auto, float32, bfloat16",
        "--kv-cache-memory-bytes 1": "--kv-cache-memory-bytes is 1; allowed: at least ",
        f"--kv-cache-memory-bytes {10**15}": f"--kv-cache-memory-bytes is {10**15}; allowed: at most ",
        "--max-model-len 999999": "--max-model-len is 999999; allowed: at most ",
        "--peer-address tcp://192.0.2.1:1": "--peer-address is 'tcp://192.0.2.1:1', which cannot be bound",
    }
    router = ("--router", "127.0.0.1:1")
    commands = [("prefill-worker", *router, *flag.split()) for flag in flags]
    expected = [*flags.values(), "--router is not given; allowed: one or more host:port"]
    commands.append(("decode-worker",))
    for damage in (drop_weights, truncate_weights, change_architecture, break_config):
        folder = tmp_path / damage.__name__
        shutil.copytree(BUNDLED_MODEL, folder)
        expected.append(damage(folder))
        commands.append(("prefill-worker", str(folder), *router))
    for part, said in zip(expected, refusals(*commands), strict=True):
        assert part in said


def test_serve_ends_with_a_worker_that_cannot_start(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, folder)
    reason = truncate_weights(folder)
    said = refusal("serve", str(folder), "--port", "0", "--grpc-port", "0", *ONE_MIXED)
    assert reason in said
    assert "worker mixed-0 ended with exit code 2" in said
    assert "started again" not in said
