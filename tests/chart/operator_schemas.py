"""The part of KEDA's and the Prometheus operator's objects that the chart emits, as JSON schemas.

Kubernetes' own schemas hold no custom resources. Written from KEDA 2.17's scaledobject_types.go and
the operator's v1 API; a field that is not here is one that the chart has no reason to emit.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _object(*, required: str = "", **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required.split(),
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


_TEXT: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER_TEXT: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = _object(
    required="name namespace labels",
    name=_TEXT,
    namespace=_TEXT,
    labels=_LABELS,
    annotations=_LABELS,
)

_POLICY = _object(
    required="type value periodSeconds",
    type={"enum": ["Pods", "Percent"]},
    value=_COUNT,
    periodSeconds=_COUNT,
)
_RULES = _object(stabilizationWindowSeconds=_COUNT, policies=_array(_POLICY), selectPolicy=_TEXT)
_REDIS_TRIGGER = _object(
    required="type name metadata authenticationRef",
    type={"const": "redis"},
    name={"type": "string", "pattern": "^[a-z]+$"},  # a variable of the formula
    metadata=_object(
        required="listName listLength databaseIndex enableTLS",
        listName=_TEXT,
        listLength=_NUMBER_TEXT,
        activationListLength=_NUMBER_TEXT,
        databaseIndex=_NUMBER_TEXT,
        enableTLS={"enum": ["true", "false"]},
    ),
    authenticationRef=_object(required="name", name=_TEXT),
)
_SCALED_OBJECT = _object(
    required="scaleTargetRef triggers",
    scaleTargetRef=_object(required="name", name=_TEXT),
    pollingInterval=_COUNT,
    cooldownPeriod=_COUNT,
    minReplicaCount=_COUNT,
    maxReplicaCount=_COUNT,
    fallback=_object(
        required="failureThreshold replicas",
        failureThreshold=_COUNT,
        replicas=_COUNT,
        behavior={
            "enum": [
                "static",
                "currentReplicas",
                "currentReplicasIfHigher",
                "currentReplicasIfLower",
            ]
        },
    ),
    advanced=_object(
        scalingModifiers=_object(
            required="formula target",
            formula=_TEXT,
            target=_NUMBER_TEXT,
            activationTarget=_NUMBER_TEXT,
            metricType={"enum": ["AverageValue", "Value"]},
        ),
        horizontalPodAutoscalerConfig=_object(behavior=_object(scaleDown=_RULES, scaleUp=_RULES)),
    ),
    triggers=_array(_REDIS_TRIGGER),
)
_TRIGGER_AUTHENTICATION = _object(
    required="secretTargetRef",
    secretTargetRef=_array(
        _object(
            required="parameter name key",
            parameter={"enum": ["address", "password", "username"]},
            name=_TEXT,
            key=_TEXT,
        )
    ),
)
_SELECTOR: Schema = {"type": "object", "required": ["matchLabels"]}
_POD_MONITOR = _object(
    required="selector podMetricsEndpoints",
    selector=_SELECTOR,
    podTargetLabels=_array(_TEXT),
    podMetricsEndpoints=_array(
        _object(
            required="port path interval",
            port=_TEXT,
            path=_TEXT,
            interval={"type": "string", "pattern": "^[0-9]+s$"},
        )
    ),
)
_RULE = _object(
    required="expr",
    alert=_TEXT,
    record=_TEXT,
    expr=_TEXT,
    labels=_LABELS,
    annotations=_LABELS,
    **{"for": _TEXT, "keep_firing_for": _TEXT},
)
_PROMETHEUS_RULE = _object(
    required="groups",
    groups=_array(_object(required="name rules", name=_TEXT, interval=_TEXT, rules=_array(_RULE))),
)

_KEDA, _OPERATOR = "keda.sh/v1alpha1", "monitoring.coreos.com/v1"
SCHEMAS: dict[str, Schema] = {
    kind: _object(
        required="apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )
    for kind, version, spec in (
        ("ScaledObject", _KEDA, _SCALED_OBJECT),
        ("TriggerAuthentication", _KEDA, _TRIGGER_AUTHENTICATION),
        ("PodMonitor", _OPERATOR, _POD_MONITOR),
        ("PrometheusRule", _OPERATOR, _PROMETHEUS_RULE),
    )
}
