"""The compose files and images give commands only flags that they take."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from baton.commands.cli_arguments import parse

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy/compose"
ROLES = {"router": "router", "prefill": "prefill-worker", "decode": "decode-worker"}
FOLDERS = {"router": "router", "prefill": "prefill_worker", "decode": "decode_worker"}
ENTRY_POINTS = {
    "router": ["baton", "router"],
    "prefill": ["python", "-m", "baton_prefill"],
    "decode": ["python", "-m", "baton_decode"],
}


@pytest.mark.parametrize(("service", "command"), ROLES.items())
def test_an_image_runs_its_command_with_flags_that_it_has(service: str, command: str) -> None:
    lines = (ROOT / FOLDERS[service] / "Dockerfile").read_text().splitlines()
    given = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines if line[:4] in ("ENTR", "CMD ")}
    assert json.loads(given["ENTRYPOINT"]) == ENTRY_POINTS[service]
    assert parse([command, *json.loads(given["CMD"])]).command == command


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_package_of_a_worker_runs_its_command(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("baton.__main__.main", commands.append)
    monkeypatch.setattr(sys, "argv", ["-m", "--router", "127.0.0.1:8100"])
    with pytest.raises(SystemExit):
        runpy.run_module(f"baton_{role}", run_name="__main__")
    assert commands == [[f"{role}-worker", "--router", "127.0.0.1:8100"]]


@pytest.mark.parametrize("service", ROLES)
def test_a_service_is_built_from_the_dockerfile_of_its_folder(service: str) -> None:
    build = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"][service]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).resolve() == ROOT / FOLDERS[
        service
    ] / "Dockerfile"


@pytest.mark.parametrize(("service", "command"), ROLES.items())
def test_a_service_finds_redis_and_listens_where_others_look_for_it(service: str, command: str) -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    folder, name = services[service]["command"][1].rsplit("/", 1)
    assert f"./{name}:{folder}/{name}:ro" in services[service]["volumes"]
    args = parse([command, "--config", str(COMPOSE / name)])
    assert args.redis == "redis://redis:6379"
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    port = next(job["dns_sd_configs"][0]["port"] for job in scraped if job["job_name"] == service)
    assert port == (args.port if service == "router" else args.metrics_port)
    assert (args.host if service == "router" else args.peer_address) in ("0.0.0.0", "tcp://0.0.0.0:5600")


@pytest.mark.parametrize("service", ROLES)
def test_an_image_runs_without_root_and_from_no_shell(service: str) -> None:
    lines = (ROOT / FOLDERS[service] / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    users = [line.split()[1] for line in last_stage if line.startswith("USER ")]
    assert users == ["baton"]
    assert any("useradd" in line and "--uid 10001 baton" in line for line in last_stage)
    after = last_stage[last_stage.index("USER baton") + 1 :]
    assert not [line for line in after if line.startswith(("RUN ", "COPY ", "ADD ", "USER "))]
    assert any(line.startswith('ENTRYPOINT ["') for line in after)


def test_workers_share_no_gpu() -> None:
    services = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())["services"]
    devices = [one["deploy"]["resources"]["reservations"]["devices"] for one in services.values()]
    assert [device["device_ids"] for (device,) in devices] == [["0"], ["1"]]


def test_no_service_gets_more_rights_than_it_has() -> None:
    for path in COMPOSE.glob("compose*.yaml"):
        for service in yaml.safe_load(path.read_text())["services"].values():
            assert service.keys().isdisjoint({"privileged", "cap_add", "user", "pid", "network_mode"})
