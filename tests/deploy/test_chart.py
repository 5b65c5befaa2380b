"""The Helm chart: rendered as agreed, valid for each version of Kubernetes, its arguments taken by Baton."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import jsonschema
import promql_parser
import pytest
import yaml

from baton.commands.cli_arguments import parse
from tests.deploy.custom_resources import CUSTOM_RESOURCES
from tests.deploy.expressions import metric_names
from tests.deploy.kubernetes_schemas import validate
from tools.k8s.manifests import (
    BASE,
    CHART,
    EXAMPLES,
    GOLDEN,
    ROOT,
    Container,
    base_text,
    containers,
    pod_templates,
    read_manifests,
    render,
    run_helm,
)
from tools.k8s.programs import find_program

needs_helm = pytest.mark.skipif(
    find_program("helm") is None, reason="helm is not there: python -m tools.k8s.programs fetches it"
)
needs_kubectl = pytest.mark.skipif(
    find_program("kubectl") is None, reason="kubectl is not there: python -m tools.k8s.programs fetches it"
)
VERSIONS: Final = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
NAMES: Final = [example.stem for example in EXAMPLES]
VARIABLES: Final = {
    "POD_IP": "10.0.0.7",
    "POD_NAME": "demo-baton-decode-5d9c",
    "LWS_LEADER_ADDRESS": "demo-baton-decode-0.demo-baton-decode",
    "LWS_WORKER_INDEX": "1",
}
GRACE: Final = "terminationGracePeriodSeconds"


@cache
def golden(name: str) -> list[dict[str, Any]]:
    return read_manifests((GOLDEN / f"{name}.yaml").read_text())


def all_containers() -> list[Container]:
    return [one for name in NAMES for one in containers(golden(name))]


def follows(command: list[str], flag: str) -> str:
    """Return the argument behind a flag; empty where the flag is not there."""
    return dict(pairwise(command)).get(flag, "")


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    assert "0 chart(s) failed" in run_helm("lint", "--strict", str(CHART))


@needs_helm
@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_an_example_is_rendered_as_in_its_golden_file(example: Path) -> None:
    """`python -m tools.k8s.manifests` writes them again; the difference belongs into the change."""
    assert render(example) == (GOLDEN / example.name).read_text()


@needs_helm
def test_the_manifests_for_kustomize_are_those_of_the_chart() -> None:
    assert base_text() == BASE.read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_has_the_schema_of_kubernetes(version: str) -> None:
    num_validated = 0
    for name in NAMES:
        for manifest in golden(name):
            templates = [
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}
                for template in pod_templates(manifest)
            ]
            for one in templates if _is_custom(manifest) else [manifest]:
                validate(one, version)
                num_validated += 1
    assert num_validated > 25


def _is_custom(manifest: dict[str, Any]) -> bool:
    return (manifest["apiVersion"], manifest["kind"]) in CUSTOM_RESOURCES


def test_every_custom_resource_has_the_fields_of_its_definition() -> None:
    kinds = set()
    for name in NAMES:
        for manifest in filter(_is_custom, golden(name)):
            kinds.add(manifest["kind"])
            schema = CUSTOM_RESOURCES[manifest["apiVersion"], manifest["kind"]]
            jsonschema.validate(manifest["spec"], schema)
    assert kinds == {kind for _, kind in CUSTOM_RESOURCES}


def test_baton_takes_the_arguments_of_every_container(tmp_path: Path) -> None:
    file = tmp_path / "redis.yaml"
    file.write_text("redis: rediss://:secret@redis:6380\n")
    roles = set()
    for container in all_containers():
        command = container.command_with(VARIABLES)
        command = [str(file) if word == "/etc/baton/redis/redis.yaml" else word for word in command]
        assert command[0] == "baton"
        args = parse(command[1:])
        assert not args.neutral_flags
        assert "$(" not in " ".join(command)
        roles.add(args.command)
        stop = container.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        if stop[:1] == ["baton"]:
            assert parse(stop[1:]).command == "drain"
    assert roles == {"router", "prefill-worker", "decode-worker", "mixed-worker", "serve"}


def test_a_pod_is_granted_the_time_that_its_processes_take_to_end() -> None:
    for container in all_containers():
        hook = container.spec.get("lifecycle", {}).get("preStop")
        if hook is None:
            continue
        command = hook["exec"]["command"]
        before = int(command[1]) if command[0] == "sleep" else int(follows(command, "--wait") or 0)
        within = int(follows(container.command, "--shutdown-timeout"))
        assert container.pod[GRACE] >= before + within + 5


def test_containers_may_do_nothing_that_they_need_not() -> None:
    for container in all_containers():
        pod, own = container.pod["securityContext"], container.spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 10001)
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert container.pod["automountServiceAccountToken"] is False
        mounts = {mount["mountPath"] for mount in container.spec["volumeMounts"]}
        assert {"/tmp", "/var/cache/baton"} <= mounts
        assert "limits" in container.spec["resources"]


def test_workers_have_shared_memory_that_counts_in_their_limit() -> None:
    for container in all_containers():
        if container.spec["name"] != "worker":
            continue
        (volume,) = (one for one in container.pod["volumes"] if one["name"] == "shm")
        assert volume["emptyDir"]["medium"] == "Memory"
        assert volume["emptyDir"]["sizeLimit"].endswith("Gi")
        assert {"name": "shm", "mountPath": "/dev/shm"} in container.spec["volumeMounts"]


def test_workers_cache_kernels_in_memory_where_the_sticky_bit_is_set() -> None:
    workers = [one for one in all_containers() if one.spec["name"] == "worker"]
    for container in workers:
        folder = next(one["value"] for one in container.spec["env"] if one["name"] == "XDG_CACHE_HOME")
        assert {"name": "kernels", "mountPath": folder} in container.spec["volumeMounts"]
        (volume,) = (one for one in container.pod["volumes"] if one["name"] == "kernels")
        assert volume["emptyDir"]["medium"] == "Memory"


@needs_helm
@pytest.mark.parametrize("name", ["cache", "kernels"])
def test_a_volume_of_ones_own_takes_the_place_of_a_cache(name: str) -> None:
    option = f"workerDefaults.extraVolumes[0].name={name}"
    for container in containers(read_manifests(render(None, "--set", option))):
        if container.spec["name"] == "worker":
            assert [one for one in container.pod["volumes"] if one["name"] == name] == [{"name": name}]


def test_a_revision_has_routers_and_workers_of_its_own() -> None:
    for name in NAMES:
        namespaces = {follows(one.command, "--redis-namespace") for one in containers(golden(name))}
        namespaces.discard("")  # ranks beside a leader have no session
        labels = {
            template["metadata"]["labels"]["baton-revision"]
            for manifest in golden(name)
            for template in pod_templates(manifest)
        }
        assert len(labels) == 1
        assert namespaces in (set(), {f"demo-baton.{labels.pop()}"})


@needs_helm
def test_beside_workers_of_several_pods_all_have_pools_apart_and_choose_ports_for_blocks() -> None:
    commands = {one.owner: one.command for one in containers(golden("ranks")) if "serve" not in one.command}
    assert follows(commands["demo-baton-prefill"], "--rank-pools") == "apart"
    assert not any("--kv-port" in command for command in commands.values())
    for options in ("tensorParallelSize=2", "args={--rank-pools,apart}"):
        manifests = read_manifests(render(None, "--set", f"workers.prefill.{options}"))
        ports = {one.owner: follows(one.command, "--kv-port") for one in containers(manifests)}
        assert ports["demo-baton-prefill"] == ""
        assert ports["demo-baton-decode"] == "5700"
        (policy,) = (
            one
            for one in manifests
            if one["metadata"]["name"] == "demo-baton-workers" and "podSelector" in one["spec"]
        )
        assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 1024, "endPort": 65535}]


def ingress(*options: str) -> dict[str, list[tuple[object, list[int]]]]:
    """Return peers and ports of each rule, by the policy."""
    manifests = read_manifests(render(None, "--set-json", *options))
    return {
        one["metadata"]["name"].removeprefix("demo-baton-"): [
            (rule["from"], [port["port"] for port in rule["ports"]]) for rule in one["spec"]["ingress"]
        ]
        for one in manifests
        if one["kind"] == "NetworkPolicy"
    }


@needs_helm
def test_ports_are_open_to_the_peers_that_are_named_and_to_no_others() -> None:
    def peer(name: str) -> list[dict[str, Any]]:
        return [{"namespaceSelector": {"matchLabels": {"name": name}}}]

    policies = ingress("networkPolicy.clients=[]")
    assert [ports for _, ports in policies["router"]] == [[8100]]
    assert [ports for _, ports in policies["workers"]] == [[5600, 5700]]
    clients = f"networkPolicy.clients={json.dumps(peer('a'))}"
    policies = ingress(clients)
    assert policies["router"][:-1] == [(peer("a"), [8000, 8100])]
    assert policies["workers"][1:] == [(peer("a"), [9100])]
    policies = ingress(clients, "--set-json", f"networkPolicy.monitoring={json.dumps(peer('b'))}")
    assert policies["router"][:-1] == [(peer("a"), [8000, 8100]), (peer("b"), [8000])]
    assert policies["workers"][1:] == [(peer("b"), [9100])]


def test_every_image_is_one_that_compose_builds() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    built = {service["image"] for service in services.values() if "build" in service}
    assert {container.spec["image"] for container in all_containers()} == built


@needs_helm
def test_another_model_or_image_is_another_revision_and_more_replicas_are_not() -> None:
    def revision(*options: str) -> str:
        found = re.search(r'baton-revision: "(\w+)"', render(None, *options))
        assert found is not None
        return found[1]

    plain = revision()
    assert revision("--set", "workers.decode.replicas=4,router.replicas=1") == plain
    assert revision("--set", "workers.decode.drainSeconds=9") == plain
    others = ("model.name=/models/a", "workers.decode.image.tag=v2", "workers.prefill.args={--dtype,float32}")
    assert len({plain, *(revision("--set", other) for other in others)}) == 4


REFUSED: Final = [
    ("router.terminationGracePeriodSeconds=309", "PeriodSeconds is 309; allowed: at least 310"),
    ("workers.decode.terminationGracePeriodSeconds=300", "allowed: at least 330"),
    ("router.replicas=2", "router.replicas is 2; allowed without redis: 1"),
    ("router.nothing=1", "additional properties 'nothing' not allowed"),
    ("workers.decode.gpus=1", "additional properties 'gpus' not allowed"),
    ("workers.decode.role=both", "value must be one of 'prefill', 'decode', 'mixed'"),
    ("workers.decode.shmSize=8Gi", "workers.decode.shmSize is 8Gi; allowed: less than the memory limit 8Gi"),
    ("workers.decode.shmSize=9000M", "shmSize is 9000M"),
    ("workers.decode.enabled=false", "workers has no group that prefills, or none that decodes"),
    ("workers.decode.nodes=2", "workers.decode.nodes is 2; allowed: a divisor of its 1 ranks"),
    ("workers.decode.role=mixed,workers.decode.autoscaling.enabled=true", "role mixed, and prefill does"),
    ("workers.b.role=decode,workers.b.autoscaling.enabled=true", "work of the role decode, and decode does"),
    ("workers.b.role=mixed,workers.decode.autoscaling.enabled=true", "work of the role decode, and b does"),
    ("router.args={--router-processes=2}", "router.args has --router-processes=2; allowed: one process"),
    (
        "workers.decode.autoscaling.enabled=true,workers.decode.autoscaling.minReplicas=9",
        "at most maxReplicas, 8",
    ),
    ("tls.routerSecret=a", "one of tls.routerSecret and tls.workerSecret is given"),
    ("redis.url=redis://:word@redis:6379", "redis/url"),
    ("model.name=a,model.download.repo=b", "allowed: one of them"),
    ("workers.decode.resources.limits.memory=8X", "does not match pattern"),
    ("workers.decode.rollingUpdate.maxSurge=0", "maxSurge and maxUnavailable are 0; allowed: one of them"),
    ("workers.decode.rollingUpdate.maxSurge=0%", "maxSurge and maxUnavailable are 0; allowed: one of them"),
    ("workers.decode.rollingUpdate.maxUnavailable=101%", "does not match pattern"),
    ("workers.decode.nodeSelector.gpus=8", "nodeSelector/gpus': got number, want string"),
    ("router.podAnnotations.a=true", "podAnnotations/a': got boolean, want string"),
    ("router.env[0].name=A,router.env[0].value=1", "value': got number, want string"),
    ("fullnameOverride=UPPER", "fullnameOverride': 'UPPER' does not match pattern"),
    ("nameOverride=under_score", "nameOverride': 'under_score' does not match pattern"),
    ("workers.router.role=mixed", "workers has a group of the name router; allowed: other names than"),
    ("workers=null", "missing property 'workers'"),
    ("router.service=null", "missing property 'service'"),
    ("workerDefaults.image=null", "missing property 'image'"),
]


@needs_helm
@pytest.mark.parametrize("memory", ["8T", "9Ti", "8P", "8Pi", "8E", "9000000000k", "9000000000000m"])
def test_a_memory_limit_may_have_every_suffix(memory: str) -> None:
    assert f"memory: {memory}" in render(
        None, "--set-string", f"workers.decode.resources.limits.memory={memory}"
    )


@needs_helm
def test_a_release_whose_name_cannot_begin_a_service_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the objects' name is 1st-baton, .* a letter first"):
        run_helm("template", "1st", str(CHART))


def test_a_group_that_is_scaled_has_no_replicas_of_its_own() -> None:
    manifests = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in golden("redis")}
    scaled = manifests["ScaledObject", "demo-baton-decode"]
    assert "replicas" not in manifests["Deployment", "demo-baton-decode"]
    assert scaled["scaleTargetRef"]["name"] == "demo-baton-decode"
    (trigger,) = scaled["triggers"]
    promql_parser.parse(trigger["metadata"]["query"])
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert manifests["Deployment", "demo-baton-prefill"]["replicas"] == 2
    ranks = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in golden("ranks")}
    hpa = ranks["HorizontalPodAutoscaler", "demo-baton-decode"]
    assert hpa["metrics"][0]["external"]["metric"]["name"] in metric_names()
    assert hpa["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    assert "replicas" not in ranks["LeaderWorkerSet", "demo-baton-decode"]


def test_a_lone_group_of_mixed_workers_is_scaled_by_the_need_of_the_fleet() -> None:
    options = (
        "workers.prefill.enabled=false,workers.decode.role=mixed,workers.decode.autoscaling.enabled=true"
    )
    manifests = read_manifests(render(None, "--set", options))
    (scaled,) = (one for one in manifests if one["kind"] == "ScaledObject")
    assert scaled["spec"]["triggers"][0]["metadata"]["query"].endswith('role="mixed"})')


def test_a_gateway_finds_the_picker_of_every_router() -> None:
    manifests = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in golden("mixed")}
    pool, service = manifests["InferencePool", "demo-baton"], manifests["Service", "demo-baton-picker"]
    assert pool["endpointPickerRef"]["name"] == "demo-baton-picker"
    assert pool["endpointPickerRef"]["port"]["number"] == service["ports"][0]["port"]
    (router,) = (one for one in containers(golden("mixed")) if one.spec["name"] == "router")
    assert follows(router.command, "--picker-port") == str(service["ports"][0]["port"])
    assert pool["targetPorts"] == [{"number": int(follows(router.command, "--port"))}]
    labels = manifests["Deployment", "demo-baton-router"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()


@needs_helm
def test_alerts_link_to_runbooks_where_they_are_read() -> None:
    url = "https://git.example/docs/runbooks"
    options = f"monitoring.prometheusRule=true,monitoring.runbooksUrl={url}/"
    manifests = read_manifests(render(None, "--set", options))
    (rules,) = (one["spec"]["groups"] for one in manifests if one["kind"] == "PrometheusRule")
    links = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]
    assert f"{url}/not_ready.md" in links
    assert all(link.startswith(f"{url}/") for link in links)


def test_routers_and_workers_of_a_release_have_one_service_label() -> None:
    monitors = [one["spec"]["endpoints"] for one in golden("redis") if one["kind"] == "ServiceMonitor"]
    assert len(monitors) == 2
    for (endpoint,) in monitors:
        assert endpoint["relabelings"] == [{"targetLabel": "service", "replacement": "demo-baton"}]


@needs_helm
@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[change for change, _ in REFUSED])
def test_values_that_cannot_hold_are_refused(change: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        render(None, "--set", change)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["replicas", "model"])
def test_overlays_build_and_are_valid(overlay: str) -> None:
    kubectl = find_program("kubectl")
    folder = ROOT / "deploy/k8s/overlays" / overlay
    done = subprocess.run(
        (str(kubectl), "kustomize", str(folder)), capture_output=True, text=True, timeout=60, check=True
    )
    manifests = read_manifests(done.stdout)
    names = {one["metadata"]["name"] for one in manifests if one["kind"] == "Namespace"}
    assert names == {one["metadata"].get("namespace", "baton") for one in manifests}
    for manifest in manifests:
        validate(manifest, VERSIONS[-1])
    for container in containers(manifests):
        args = parse(container.command_with(VARIABLES)[1:])
        assert (args.model == "/models/qwen3-0.6b") == (overlay == "model")
