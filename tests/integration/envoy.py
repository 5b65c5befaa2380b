"""A real Envoy in front of an endpoint picker, configured as gateways of the inference extension are."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from bench.processes import free_port
from tests.integration.scripted_worker import until
from tools.k8s.programs import find_program

DESTINATION: Final = "x-gateway-destination-endpoint"
_STOPS_WITHIN_S: Final = 30.0
_BUFFER_BYTES: Final = 2**23
_HTTP2: Final = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


def _socket_address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


_ANY_ENDPOINT: Final = {
    "type": "ORIGINAL_DST",
    "lb_policy": "CLUSTER_PROVIDED",
    "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
}


def _endpoints(ports: Sequence[int]) -> dict[str, Any]:
    """Return a cluster of these endpoints, of which a header names one or several to try."""
    policies = "type.googleapis.com/envoy.extensions.load_balancing_policies"
    spread = {"name": "spread", "typed_config": {"@type": f"{policies}.round_robin.v3.RoundRobin"}}
    override = {
        "@type": f"{policies}.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}],
        "fallback_policy": {"policies": [{"typed_extension_config": spread}]},
    }
    endpoints = [{"endpoint": {"address": _socket_address(port)}} for port in ports]
    return {
        "type": "STATIC",
        "load_balancing_policy": {
            "policies": [{"typed_extension_config": {"name": "override", "typed_config": override}}]
        },
        "load_assignment": {"cluster_name": "pool", "endpoints": [{"lb_endpoints": endpoints}]},
    }


def configuration(
    port: int, picker_port: int, body_mode: str, subset: list[str] | None, pool: Sequence[int]
) -> dict[str, Any]:
    """Return Envoy's configuration: every request goes where the picker says."""
    types = "type.googleapis.com/envoy.extensions.filters"
    is_duplex = body_mode == "FULL_DUPLEX_STREAMED"
    picker = {
        "name": "picker",
        "typed_config": {
            "@type": f"{types}.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "failure_mode_allow": False,
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": body_mode,
                "request_trailer_mode": "SEND",
                **({"response_body_mode": body_mode, "response_trailer_mode": "SEND"} if is_duplex else {}),
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }
    hint = {
        "name": "hint",
        "typed_config": {
            "@type": f"{types}.http.set_metadata.v3.Config",
            "metadata": [
                {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "value": {"x-gateway-destination-endpoint-subset": subset},
                }
            ],
        },
    }
    router = {"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "60s"}}],
                    "response_headers_to_add": [
                        {
                            "header": {"key": f"x-seen-{name}", "value": f"%REQ({name})%"},
                            "keep_empty_value": True,
                        }
                        for name in (DESTINATION, "x-baton-prefill-worker", "x-baton-decode-worker")
                    ]
                    + [
                        {
                            "header": {
                                "key": "x-seen-metadata",
                                "value": f"%DYNAMIC_METADATA(envoy.lb:{DESTINATION})%",
                            }
                        }
                    ],
                }
            ]
        },
        "http_filters": [*([hint] if subset is not None else []), picker, router],
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _socket_address(port),
                    "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
                    "filter_chains": [
                        {"filters": [{"name": "envoy.http_connection_manager", "typed_config": manager}]}
                    ],
                }
            ],
            "clusters": [
                {"name": "pool", **(_endpoints(pool) if pool else _ANY_ENDPOINT)},
                {
                    "name": "picker",
                    "type": "STATIC",
                    "typed_extension_protocol_options": _HTTP2,
                    "load_assignment": {
                        "cluster_name": "picker",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": _socket_address(picker_port)}}]}
                        ],
                    },
                },
            ],
        }
    }


@asynccontextmanager
async def gateway(
    folder: Path,
    picker_port: int,
    *,
    body_mode: str = "FULL_DUPLEX_STREAMED",
    subset: list[str] | None = None,
    pool: Sequence[int] = (),
) -> AsyncIterator[httpx.AsyncClient]:
    """Run an Envoy in front of a picker; yields a client of it.

    It takes any address that the picker names; with a `pool` of ports, lists of these.
    """
    port = free_port()
    config = folder / f"envoy-{port}.json"
    config.write_text(json.dumps(configuration(port, picker_port, body_mode, subset, pool)))
    command = (str(find_program("envoy")), "-c", str(config), "--use-dynamic-base-id", "--concurrency", "1")
    with (folder / f"envoy-{port}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, "--log-level", "warning", stdout=log, stderr=log
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
                await until(lambda: _listens(port))
                yield client
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), _STOPS_WITHIN_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
