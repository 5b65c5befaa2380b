"""Flags of TLS and keys: what `serve` hands to its router and its workers, and what is refused at once."""

from __future__ import annotations

import pytest

from baton.cli import main
from baton.commands.cli_arguments import parse, router_flags, worker_flags
from baton.commands.security_arguments import keys_of
from baton.processes.secret_flags import hide_secrets, take_secrets


def handed(*flags: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the TLS settings and keys that `baton serve` gives its router and its workers."""
    args = parse(["serve", *flags])
    router = parse(["router", *router_flags(args)])
    worker = parse(["decode-worker", *worker_flags(args, num_workers=2)])
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "api_key", "open_metrics")
    of_router = {name: getattr(router, name) for name in (*names, "ssl_cert_reqs", "ssl_grpc_ca_certs")}
    of_worker = {name: getattr(worker, name) for name in (*names, "ssl_router_name", "peer_encryption")}
    return of_router, of_worker


def test_workers_that_serve_starts_believe_its_routers_certificate_and_show_it() -> None:
    files = ("--ssl-certfile", "r.pem", "--ssl-keyfile", "r.key", "--ssl-grpc-ca-certs", "ca.pem")
    keys = ("--api-key", "one", "--api-key", "two", "--open-metrics")
    router, worker = handed(*files, *keys, "--ssl-router-name", "r", "--no-peer-encryption")
    both = {"ssl_certfile": "r.pem", "ssl_keyfile": "r.key", "api_key": ("one", "two"), "open_metrics": True}
    assert router == {**both, "ssl_ca_certs": "", "ssl_cert_reqs": 0, "ssl_grpc_ca_certs": "ca.pem"}
    assert worker == {**both, "ssl_ca_certs": "r.pem", "ssl_router_name": "r", "peer_encryption": False}


def test_without_files_and_keys_there_are_neither() -> None:
    router, worker = handed()
    both = {"ssl_certfile": "", "ssl_keyfile": "", "ssl_ca_certs": "", "api_key": (), "open_metrics": False}
    assert router == {**both, "ssl_cert_reqs": 0, "ssl_grpc_ca_certs": ""}
    assert worker == {**both, "ssl_router_name": "", "peer_encryption": True}


def test_the_key_of_the_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API_KEY", "outside")
    assert keys_of(parse(["router"])) == ("outside",)
    assert keys_of(parse(["router", "--api-key", "given"])) == ("given",)
    monkeypatch.setenv("BATON_API_KEY", "of-a-file\n")
    assert keys_of(parse(["router"])) == ("of-a-file",)


@pytest.mark.parametrize("model", [["m"], ["--model", "m"]])
def test_several_keys_may_follow_one_flag_behind_the_model(model: list[str]) -> None:
    keys = ["--api-key", "one", "two", "--port", "1", "--api_key", "three", "four"]
    args = parse(["serve", *model, *keys])
    assert (args.model, args.api_key, args.port) == ("m", ("one", "two", "three", "four"), 1)


def test_the_model_may_follow_a_key() -> None:
    args = parse(["serve", "--api-key", "one", "m", "--port", "1"])
    assert (args.model, args.api_key) == ("m", ("one",))


@pytest.mark.parametrize(
    "command", [("router",), ("decode-worker",), ("drain", "--address", "127.0.0.1:1"), ("complete", "x")]
)
def test_a_key_that_no_header_takes_is_refused_and_not_shown(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_API_KEY", "se\ncret")
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"baton {command[0]}: BATON_API_KEY has other characters; allowed: visible ASCII\n")


def test_a_child_gets_secrets_by_its_environment_and_keeps_none_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = ["--api-key=one", "--api-key=two", "--redis=redis://:word@cache", "--resume-secret=three"]
    shown, environment = hide_secrets(["model", *secrets, "--redis-namespace=a"])
    assert shown == ["model", "--redis-namespace=a"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert take_secrets() == secrets
    assert take_secrets() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("router", "--ssl-certfile", "/no/such.pem"),
            "--ssl-certfile is '/no/such.pem', which cannot be read",
        ),
        (("complete", "x", "--ssl-keyfile", "k"), "--ssl-keyfile is 'k' without --ssl-ca-certs"),
        (
            ("kv-events", "tcp://127.0.0.1:1", "--curve-server-key", "/no/such.key"),
            "--curve-server-key is '/no/such.key', which cannot be used (no such file)",
        ),
    ],
)
def test_a_file_that_is_not_there_is_refused_before_any_work(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
