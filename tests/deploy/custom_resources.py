"""Schemas of the custom resources that the chart may make: fields of their `spec` that it uses, no others.

Written from the types of LeaderWorkerSet 0.10, KEDA, the Prometheus operator and the Gateway API; templates
of pods are checked by the schemas of Kubernetes itself. The golden files were also validated once by the npm
packages `@kubernetes-models/keda` 0.4.2, `prometheus-operator` 6.0.0 and `gateway-api` 0.5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = Mapping[str, Any]


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_COUNT_OR_SHARE: Final[Schema] = {"type": ["integer", "string"]}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
_TEMPLATE: Final = _object(["spec"], metadata={"type": "object"}, spec={"type": "object"})
_SECRET_KEY: Final = _object(["key"], name=_TEXT, key=_TEXT)
_DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
_LEADER_WORKER_SET: Final = _object(
    ["leaderWorkerTemplate"],
    replicas=_COUNT,
    startupPolicy=_one_of("LeaderCreated", "LeaderReady"),
    rolloutStrategy=_object(
        ["type"],
        type=_one_of("RollingUpdate"),
        rollingUpdateConfiguration=_object(
            partition=_COUNT, maxUnavailable=_COUNT_OR_SHARE, maxSurge=_COUNT_OR_SHARE
        ),
    ),
    leaderWorkerTemplate=_object(
        ["workerTemplate"],
        size={"type": "integer", "minimum": 1},
        restartPolicy=_one_of("RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
        leaderTemplate=_TEMPLATE,
        workerTemplate=_TEMPLATE,
    ),
)
_SERVICE_MONITOR: Final = _object(
    ["selector", "endpoints"],
    selector=_object(matchLabels=_TEXTS),
    endpoints={
        "type": "array",
        "items": _object(
            port=_TEXT,
            path=_TEXT,
            interval=_DURATION,
            relabelings={"type": "array", "items": _object(targetLabel=_TEXT, replacement=_TEXT)},
            scheme=_one_of("http", "https"),
            tlsConfig=_object(serverName=_TEXT, ca=_object(secret=_SECRET_KEY)),
            authorization=_object(type=_TEXT, credentials=_SECRET_KEY),
        ),
    },
)
_RULE: Final = _object(
    ["expr"],
    alert=_TEXT,
    record=_TEXT,
    expr={"type": ["string", "integer"]},
    labels=_TEXTS,
    annotations=_TEXTS,
    **{"for": _DURATION, "keep_firing_for": _DURATION},
)
_PROMETHEUS_RULE: Final = _object(
    ["groups"],
    groups={
        "type": "array",
        "items": _object(
            ["name", "rules"], name=_TEXT, interval=_DURATION, rules={"type": "array", "items": _RULE}
        ),
    },
)
_SCALED_OBJECT: Final = _object(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=_object(["name"], apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
    pollingInterval=_COUNT,
    minReplicaCount=_COUNT,
    maxReplicaCount=_COUNT,
    fallback=_object(
        ["failureThreshold", "replicas"],
        failureThreshold=_COUNT,
        replicas=_COUNT,
        behavior=_one_of("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"),
    ),
    advanced=_object(
        horizontalPodAutoscalerConfig=_object(
            behavior=_object(scaleDown=_object(stabilizationWindowSeconds=_COUNT))
        )
    ),
    triggers={
        "type": "array",
        "items": _object(
            ["type", "metadata"],
            type=_one_of("prometheus"),
            metricType=_one_of("AverageValue", "Value"),
            metadata=_object(
                ["serverAddress", "query", "threshold"],
                serverAddress=_TEXT,
                query=_TEXT,
                threshold=_TEXT,
                ignoreNullValues=_one_of("true", "false"),
            ),
        ),
    },
)
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_INFERENCE_POOL: Final = _object(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=_object(["matchLabels"], matchLabels=_TEXTS),
    targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": _object(["number"], number=_PORT)},
    appProtocol=_one_of("http", "kubernetes.io/h2c"),
    endpointPickerRef=_object(
        ["name", "port"],
        group=_TEXT,
        kind=_TEXT,
        name=_TEXT,
        port=_object(["number"], number=_PORT),
        failureMode=_one_of("FailOpen", "FailClose"),
    ),
)
_HTTP_ROUTE: Final = _object(
    ["parentRefs", "rules"],
    parentRefs={"type": "array", "items": _object(["name"], name=_TEXT, namespace=_TEXT, sectionName=_TEXT)},
    rules={
        "type": "array",
        "items": _object(
            ["backendRefs"],
            backendRefs={
                "type": "array",
                "items": _object(["name"], group=_TEXT, kind=_TEXT, name=_TEXT, port=_PORT),
            },
            timeouts=_object(request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
        ),
    },
)
CUSTOM_RESOURCES: Final[Mapping[tuple[str, str], Schema]] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _LEADER_WORKER_SET,
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED_OBJECT,
    ("inference.networking.k8s.io/v1", "InferencePool"): _INFERENCE_POOL,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _HTTP_ROUTE,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _SERVICE_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): _PROMETHEUS_RULE,
}
