"""Names, labels, deadlines and volumes of rendered releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.test_chart import golden, needs_helm
from tools.k8s.manifests import EXAMPLES, containers, read_manifests, render


def objects(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one.get("spec", {}) for one in manifests}


def test_an_autoscaler_asks_for_the_workers_of_its_own_release() -> None:
    scaled = objects(golden("redis"))["ScaledObject", "demo-baton-decode"]
    assert 'service="demo-baton"' in scaled["triggers"][0]["metadata"]["query"]
    hpa = objects(golden("ranks"))["HorizontalPodAutoscaler", "demo-baton-decode"]
    labels = hpa["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    assert labels == {"namespace": "baton", "service": "demo-baton", "role": "decode"}
    assert ("Service", "demo-baton") in objects(golden("redis"))


def test_a_router_may_take_as_long_as_the_workers_that_it_waits_for() -> None:
    for example in EXAMPLES:
        deployments = [one["spec"] for one in golden(example.stem) if one["kind"] == "Deployment"]
        for deployment in deployments:
            assert deployment["progressDeadlineSeconds"] > 1200


def test_a_port_of_tls_is_not_said_to_speak_plain_text() -> None:
    for name, protocol in (("tls", None), ("redis", "kubernetes.io/h2c")):
        http, grpc = objects(golden(name))["Service", "demo-baton"]["ports"]
        assert ("appProtocol" in http, grpc.get("appProtocol")) == (False, protocol)


def test_a_worker_writes_the_kernels_of_triton_where_it_may_write() -> None:
    for container in containers(golden("redis")):
        if container.spec["name"] == "worker":
            assert {"name": "TRITON_HOME", "value": "/var/cache/baton"} in container.spec["env"]


@needs_helm
@pytest.mark.parametrize(("part", "owner"), [("router", "router"), ("workers.decode", "decode")])
def test_further_volumes_are_mounted_and_one_of_them_may_be_the_cache(part: str, owner: str) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "shared"}}
    volumes = [{"name": "cache", **claim}, {"name": "files", **claim}]
    mount = {"name": "files", "mountPath": "/files"}
    options = (
        f"{part}.extraVolumes={json.dumps(volumes)}",
        f"{part}.extraVolumeMounts={json.dumps([mount])}",
    )
    rendered = containers(read_manifests(render(None, "--set-json", options[0], "--set-json", options[1])))
    for container in rendered:
        names = [volume["name"] for volume in container.pod["volumes"]]
        assert len(set(names)) == len(names)
        has_own = container.owner == f"demo-baton-{owner}"
        assert (mount in container.spec["volumeMounts"]) == has_own
        cache = next(volume for volume in container.pod["volumes"] if volume["name"] == "cache")
        assert cache == (volumes[0] if has_own else {"name": "cache", "emptyDir": {}})
