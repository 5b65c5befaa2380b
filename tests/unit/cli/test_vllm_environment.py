"""Variables of the environment that vLLM documents."""

from __future__ import annotations

import logging
import re

import pytest

from baton.cli import main
from baton.commands.bench_plan import read_plan
from baton.commands.cli_arguments import parse
from baton.commands.security_arguments import keys_of, router_access
from baton.config.engine_args import EngineArgs
from baton.config.environment import cpu_kv_cache_bytes, max_n_sequences, unread_variables
from baton.config.launch_checks import check_worker_settings
from baton.config.worker_parts import worker_settings
from baton_bench.serving import HttpServer
from baton_core.errors import InvalidConfigError
from baton_core.requests.sampling_params import MAX_N
from baton_kernels.cpu.build import cache_folder


def test_a_key_of_vllm_is_the_routers_and_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", "outside")
    for command in ("serve", "router", "decode-worker"):
        assert keys_of(parse([command])) == ("outside",)
    assert router_access(parse(["chat"])).metadata == (("authorization", "Bearer outside"),)
    plan = read_plan(parse(["bench", "serve"]))
    assert isinstance(plan.server, HttpServer)
    assert plan.server.headers == {"Authorization": "Bearer outside"}
    monkeypatch.setenv("BATON_API_KEY", "own")
    assert keys_of(parse(["router"])) == ("own",)
    assert keys_of(parse(["router", "--api-key", "given"])) == ("given",)


def test_variables_stand_in_for_flags_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "9")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "200")
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/traces")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1|2-3")
    args = parse(["serve"])
    assert (args.log_level, args.idle_timeout, args.enable_operator_routes) == ("debug", 9.0, True)
    assert (args.profiler_config, args.cpu_bind) == ({"torch_profiler_dir": "/traces"}, "0-1|2-3")
    assert args.max_n_sequences == 200
    args = parse(["serve", "--log-level", "error", "--no-enable-operator-routes", "--cpu-bind", "none"])
    assert (args.log_level, args.enable_operator_routes, args.cpu_bind) == ("error", False, "none")


@pytest.mark.parametrize(("text", "cores"), [("nobind", "none"), ("auto", "auto"), ("0-3", "0-3")])
def test_cores_are_said_in_words_of_vllm(text: str, cores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
    assert parse(["serve"]).cpu_bind == cores


def test_children_of_serve_are_told_by_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert parse(["router", "--parent-pid", "1"]).enable_operator_routes is False


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("VLLM_LOGGING_LEVEL", "LOUD", "debug, info, warning, error"),
        ("VLLM_SERVER_DEV_MODE", "maybe", "1 or 0"),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "-5", "a finite number over 0 to 1000000"),
    ],
)
def test_a_wrong_value_is_refused_by_variable(
    variable: str,
    value: str,
    allowed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == f"baton: {variable} is {value!r}; allowed: {allowed}\n"


def test_a_wrong_value_beside_the_flag_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "abc")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "maybe")
    args = parse(["serve", "--idle-timeout=9", "--no-enable-operator-routes"])
    assert (args.idle_timeout, args.enable_operator_routes) == (9, False)


def test_the_space_of_a_cpus_kv_cache_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.5")
    settings = worker_settings(EngineArgs(device="cpu"))
    assert settings.engine.kv_cache.kv_cache_memory_bytes == 2**29
    settings = worker_settings(EngineArgs(device="cpu", kv_cache_memory_bytes=2**20))
    assert settings.engine.kv_cache.kv_cache_memory_bytes == 2**20
    assert cpu_kv_cache_bytes({"VLLM_CPU_KVCACHE_SPACE": "0"}) is None
    for text in ("x", "-1", "inf", "nan", "1e30"):
        with pytest.raises(InvalidConfigError, match=r"^VLLM_CPU_KVCACHE_SPACE is .*; allowed: GiB over 0"):
            cpu_kv_cache_bytes({"VLLM_CPU_KVCACHE_SPACE": text})


def test_the_most_sequences_in_python_are_those_of_the_environment() -> None:
    assert max_n_sequences({}) == MAX_N
    assert max_n_sequences({"VLLM_MAX_N_SEQUENCES": "4"}) == 4
    for text in ("", "x", "0", "-1", "16385", "9" * 5000):
        with pytest.raises(
            InvalidConfigError, match=r"^VLLM_MAX_N_SEQUENCES is .*; allowed: an integer from"
        ):
            max_n_sequences({"VLLM_MAX_N_SEQUENCES": text})


def test_variables_that_every_worker_would_refuse_are_refused_by_the_launcher() -> None:
    refused = {
        "BATON_CPU_KERNELS": ("foo", "BATON_CPU_KERNELS is 'foo'; allowed on this CPU: auto"),
        "VLLM_CPU_KVCACHE_SPACE": ("x", "VLLM_CPU_KVCACHE_SPACE is 'x'; allowed: GiB over 0"),
    }
    for variable, (value, message) in refused.items():
        with pytest.raises(InvalidConfigError, match=re.escape(message)):
            check_worker_settings(EngineArgs(device="cpu"), {variable: value})
    given = EngineArgs(device="cpu", cpu_kernels="torch", kv_cache_memory_bytes=2**20)
    check_worker_settings(given, {variable: value for variable, (value, _) in refused.items()})


def test_kernels_are_cached_below_the_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/else")
    for root, expected in (("/elsewhere", "/elsewhere"), ("~/kernels", "/home/me/kernels"), ("", "/else")):
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.setenv("VLLM_CACHE_ROOT", root)
        assert str(cache_folder()) == f"{expected}/baton/cpu_kernels"


def test_variables_that_are_not_read_are_named_with_what_sets_the_same() -> None:
    environment = {
        "VLLM_PORT": "1",
        "BATON_API_KEY": "\n",
        "VLLM_API_KEY": "k",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_TRITON_AWQ": "1",
        "HF_TOKEN": "t",
    }
    assert unread_variables(environment) == [
        "BATON_API_KEY (empty: it is no key)",
        "VLLM_PORT (instead: --port and --grpc-port)",
        "VLLM_USE_TRITON_AWQ",
    ]


def test_the_log_names_once_what_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from baton import cli

    monkeypatch.setenv("VLLM_PORT", "1")
    monkeypatch.setenv("VLLM_USE_TRITON_AWQ", "1")
    caplog.set_level(logging.INFO, "baton.cli")
    cli._name_what_is_not_read(parse(["serve", "-dcp", "1", "--disable-log-stats"]))
    flags, variables = (record.getMessage() for record in caplog.records)
    assert flags == "these flags change nothing here: --decode-context-parallel-size, --disable-log-stats"
    assert variables.endswith("not read: VLLM_PORT (instead: --port and --grpc-port), VLLM_USE_TRITON_AWQ")
