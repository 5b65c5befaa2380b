from __future__ import annotations

import math
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_router.process.http_settings import HttpSettings
from baton_router.process.router_settings import RouterSettings


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("model", "", "--model"),
        ("served_model_names", ("a\nb",), "--served-model-name"),
        ("served_model_names", ("a", "a"), "--served-model-name"),
        ("host", "", "--host"),
        ("host", "local host", "--host"),
        ("grpc_host", "local host", "--grpc-host"),
        ("port", -1, "--port"),
        ("port", 65_536, "--port"),
        ("port", True, "--port"),
        ("grpc_port", 65_536, "--grpc-port"),
        ("grpc_port", 8000, "--grpc-port"),
        ("routing_policy", "random", "--routing-policy"),
        ("split", "sometimes", "--split"),
        ("min_split_tokens", 0, "--min-split-tokens"),
        ("request_timeout_s", 0.0, "--request-timeout"),
        ("request_timeout_s", math.inf, "--request-timeout"),
        ("shutdown_timeout_s", -1.0, "--shutdown-timeout"),
        ("log_format", "xml", "--log-format"),
        ("log_level", "loud", "--log-level"),
    ],
)
def test_a_bad_setting_is_refused_by_flag_value_and_what_is_allowed(name: str, value: Any, flag: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        RouterSettings(**{"model": "m", name: value})
    assert str(caught.value).startswith(f"{flag} is {value!r}; allowed: ")


def test_a_split_mode_may_be_given_by_name() -> None:
    assert RouterSettings(model="m", split="never").split is SplitMode.NEVER  # type: ignore[arg-type]


def test_a_routing_policy_may_be_given_by_name() -> None:
    settings = RouterSettings(model="m", routing_policy="prefix")  # type: ignore[arg-type]
    assert settings.routing_policy is RoutingPolicy.PREFIX


def test_a_model_is_served_under_its_own_name_unless_it_gets_others() -> None:
    assert RouterSettings(model="m").model_names == ("m",)
    assert RouterSettings(model="m", served_model_names=("s", "t")).model_names == ("s", "t")


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        ({}, ("127.0.0.1", "")),
        ({"host": "localhost", "advertise_host": "a.example"}, ("localhost", "a.example")),
        ({"host": "::1"}, ("::1", "")),
        ({"host": "0.0.0.0"}, None),
        ({"host": "gpu.example"}, None),
        ({"http": HttpSettings(api_keys=("key",))}, None),
        ({"uds": "/run/baton"}, None),
    ],
)
def test_a_router_for_this_machine_alone_has_pages_at_few_names(
    settings: dict[str, Any], hosts: tuple[str, ...] | None
) -> None:
    assert RouterSettings(model="m", **settings).own_hosts == hosts


@pytest.mark.parametrize(
    ("host", "listened_on", "address"),
    [
        ("0.0.0.0", "0.0.0.0", "0.0.0.0:8100"),
        ("::1", "::1", "[::1]:8100"),
        ("[::1]", "::1", "[::1]:8100"),
    ],
)
def test_an_ipv6_host_is_bracketed_once(host: str, listened_on: str, address: str) -> None:
    settings = RouterSettings(model="m", host=host)
    assert (settings.host, settings.grpc_address) == (listened_on, address)
    assert RouterSettings(model="m", grpc_host=host).grpc_address == address
