"""One cluster with mutual TLS, keys and CURVE on every port, and who is let in where."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.commands.admin import admin
from baton.commands.cli_arguments import parse
from baton.commands.complete import complete
from baton.commands.drain import drain
from baton.commands.explain import explain
from baton_core.errors import RequestError
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub, OperatorStub
from baton_service.router_access import RouterAccess
from baton_service.tls import ClientTls
from tests.certificates import Authority, Pair, needs_openssl
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import FLOAT32, SMALL, Cluster, listening_ports, serving
from tests.integration.scripted_worker import ScriptedWorker, until

pytestmark = needs_openssl
KEY: Final = "the-key"
KEYED: Final = {"authorization": f"Bearer {KEY}"}
METADATA: Final = tuple(KEYED.items())
WITHIN_S: Final = 30.0
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""First bytes of a ZMQ client that wants CURVE. Source: https://rfc.zeromq.org/spec/23/ (ZMTP 3.0)."""


@dataclass(frozen=True, slots=True)
class Site:
    cluster: Cluster
    authority: Authority
    client: Pair
    stranger: Pair
    """A certificate of another authority."""

    def tls(self, pair: Pair | None) -> ClientTls:
        given = {"certfile": pair.certfile, "keyfile": pair.keyfile} if pair else {}
        return ClientTls(ca_certs=self.authority.own.certfile, **given)

    def http(self, pair: Pair | None, **options: Any) -> httpx.Client:
        context = self.tls(pair).client_context()
        return httpx.Client(base_url=f"https://{self.cluster.http_address}", verify=context, **options)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the TLS flags of the commands that are clients."""
        files = ("--ssl-certfile", self.client.certfile, "--ssl-keyfile", self.client.keyfile)
        return ("--ssl-ca-certs", self.authority.own.certfile, *files, "--api-key", KEY)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("security")
    authority = Authority.make(folder)
    router, client = authority.issue("router"), authority.issue("client")
    stranger = Authority.make(folder, "other").issue("stranger")
    flags = (
        *("--ssl-certfile", router.certfile, "--ssl-keyfile", router.keyfile),
        *("--ssl-ca-certs", authority.own.certfile, "--ssl-cert-reqs", "2", "--api-key", KEY),
        *("--kv-transport", "tcp", "--metrics-port", "0", "--enable-operator-routes", *SMALL, *FLOAT32),
    )
    tls = ClientTls(ca_certs=authority.own.certfile, certfile=client.certfile, keyfile=client.keyfile)
    with serving(folder / "cluster", *flags, access=RouterAccess(tls, KEY)) as cluster:
        yield Site(cluster, authority, client, stranger)


def test_who_has_certificate_and_key_is_served_over_both_protocols(site: Site) -> None:
    prompt = draw_prompt(300, 1)
    (output,), finished = answer(site.cluster.stub.Generate(ask(prompt, greedy(8))))
    assert finished.timings.prefill_worker != finished.timings.decode_worker != ""
    assert finished.timings.transferred_bytes > 0
    with site.http(site.client, headers=KEYED) as client:
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["token_ids"] == list(output.token_ids)


def test_plain_text_is_refused(site: Site) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://{site.cluster.http_address}/health")
    assert status_of(site, RouterAccess(key=KEY)) == "UNAVAILABLE"


def test_a_client_has_to_show_a_certificate_of_the_authority(site: Site) -> None:
    for pair in (None, site.stranger):
        assert status_of(site, RouterAccess(site.tls(pair), KEY)) == "UNAVAILABLE"
        # With TLS 1.3 the client is through first and hears of it when it reads.
        with site.http(pair, headers=KEYED) as client, pytest.raises(httpx.TransportError):
            client.get("/v1/models")


def test_a_worker_without_a_certificate_hears_why_and_does_not_join(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(access: RouterAccess) -> str:
        worker = ScriptedWorker("w1")
        port = int(site.cluster.address.rpartition(":")[2])
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            joining = asyncio.create_task(worker.joined(port, access).__aenter__())
            await until(lambda: bool(caplog.messages))
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            await worker.client.close()
        assert not worker.has_joined
        return caplog.messages[0]

    address = re.escape(f"router {site.cluster.address} cannot be reached, trying on: ")
    for access, advice in (
        (RouterAccess(key=KEY), "; if it speaks TLS, it wants --ssl-ca-certs"),
        (RouterAccess(site.tls(None), KEY), "; if it demands a certificate, it wants --ssl-certfile"),
    ):
        assert re.fullmatch(f"{address}.*{advice}", asyncio.run(refused(access)))


def test_every_grpc_method_but_health_wants_a_key(site: Site) -> None:
    with RouterAccess(site.tls(site.client)).open_channel(site.cluster.address) as channel:
        methods = [
            (f"/{service.full_name}/{method.name}", method)
            for service in pb.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        ]
        assert {path.split("/")[1] for path, _ in methods} == {"baton.v1.Baton", "baton.v1.Operator"}
        for path, _ in (*methods, ("/baton.v1.Baton/Nothing", None)):
            call = channel.unary_unary(path)
            for metadata in ((), (("authorization", "Bearer the-kez"),), (("authorization", KEY),)):
                with pytest.raises(grpc.RpcError) as caught:
                    call(b"", timeout=WITHIN_S, metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, path
        assert BatonStub(channel).GetModelInfo(pb.GetModelInfoRequest(), metadata=METADATA).is_ready
        asked = pb.ControlRequest(action="is_sleeping")
        assert len(OperatorStub(channel).Control(asked, timeout=WITHIN_S, metadata=METADATA).results) == 2
        assert reflected(channel, METADATA) >= {"baton.v1.Baton", "baton.v1.Operator"}
        with pytest.raises(grpc.RpcError) as caught:
            reflected(channel, ())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_every_http_route_but_health_wants_a_key(site: Site) -> None:
    with site.http(site.client) as client:
        assert client.get("/health").status_code == 200
        for path in ("/metrics", "/openapi.json", "/debug/cluster", "/v1/models", "/is_sleeping"):
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers={"authorization": "Bearer the-kez"}).status_code == 401, path
            assert client.get(path, headers=KEYED).status_code == 200, path


def test_metrics_of_workers_are_encrypted_and_want_the_key(site: Site) -> None:
    urls = re.findall(r"metrics at (\S+)/metrics", site.cluster.log.read_text())
    assert len(urls) == 2
    for url in urls:
        assert url.startswith("https://")
        with httpx.Client(base_url=url, verify=site.tls(None).client_context()) as client:
            assert client.get("/health").status_code == 200
            refused = client.get("/metrics")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert client.get("/metrics", headers=KEYED).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https:", "http:"))


def test_workers_speak_to_each_other_by_curve_alone(site: Site) -> None:
    for title in ("baton prefill-worker", "baton decode-worker"):
        (worker,) = site.cluster.pids_of(title)
        greetings = [greeting_at(port) for port in listening_ports(worker)]
        mechanisms = [greeting[12:32].rstrip(b"\0") for greeting in greetings if greeting[:1] == b"\xff"]
        assert mechanisms == [b"CURVE"] * 2, "the peer channel, and that of the blocks"


def test_the_commands_show_certificate_and_key(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(draw_prompt(40, 2), greedy(2))
    asked.request_id = "told"
    answer(site.cluster.stub.Generate(asked))
    address = ("--address", site.cluster.address, *site.flags)
    assert complete(parse(["complete", "Hello", "--max-tokens", "1", *address])) == 0
    assert "1 new" in capsys.readouterr().out
    assert admin(parse(["admin", "workers", *address])) == 0
    assert "decode-1" in capsys.readouterr().out
    assert explain(parse(["explain", "told", "--address", site.cluster.http_address, *site.flags])) == 0
    assert "told" in capsys.readouterr().out
    with pytest.raises(RequestError, match="wants a key, by --api-key"):
        admin(parse(["admin", "workers", *address, "--api-key", "another"]))


def test_a_worker_is_probed_and_drained_over_tls(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """As the chart's probes, which show nothing, and its hook, which knows authority and key."""
    (url,) = re.findall(r"decode-worker \S+ metrics at (\S+)/metrics", site.cluster.log.read_text())
    hook = ["drain", "--address", url.removeprefix("https://"), "--wait", "30"]
    hook += ["--ssl-ca-certs", site.authority.own.certfile]
    with httpx.Client(base_url=url, verify=site.tls(None).client_context()) as client:
        assert [client.get(path).status_code for path in ("/started", "/live", "/ready")] == [200] * 3
        with pytest.raises(RequestError, match="wants a key, by --api-key"):
            drain(parse(hook))
        assert drain(parse([*hook, "--api-key", KEY])) == 0
        assert capsys.readouterr().out == "the worker is drained\n"
        assert [client.get(path).status_code for path in ("/live", "/ready")] == [200, 503]
        address = ("--address", site.cluster.address, *site.flags)
        assert admin(parse(["admin", "undrain", "decode-1", *address])) == 0
        assert client.get("/ready").status_code == 200


def status_of(site: Site, access: RouterAccess) -> str:
    with access.open_channel(site.cluster.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            BatonStub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=WITHIN_S)
        return str(caught.value.code().name)


def reflected(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> set[str]:
    """Names of the services that the router describes."""
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (reply,) = stub.ServerReflectionInfo(iter((asked,)), timeout=WITHIN_S, metadata=metadata)
    return {service.name for service in reply.list_services_response.service}


def greeting_at(port: int) -> bytes:
    """Return the bytes with which a server greets such a client before it hangs up."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall(_GREETING)
        while len(heard) < len(_GREETING) and (more := connection.recv(len(_GREETING))):
            heard += more
    return heard
