"""The fields of a pod that this kubelet keeps, those that mean nothing for a process, and a refusal
of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Shape: TypeAlias = "dict[str, Shape | list[Shape] | None]"
"""Fields by name: None is any value, a dict is an object, a list of one dict is a list of such
objects."""


class Refused(Exception):
    """A manifest asks for what a process cannot be given here."""


def _any(names: str) -> Shape:
    return {name: None for name in names.split()}  # noqa: C420 - fromkeys would be a dict of None alone


_HTTP_GET: Shape = {**_any("path port host scheme"), "httpHeaders": [_any("name value")]}
_PROBE_HANDLERS: Shape = {
    "exec": _any("command"),
    "httpGet": _HTTP_GET,
    "tcpSocket": _any("port host"),
}
_HOOK_HANDLERS: Shape = {**_PROBE_HANDLERS, "sleep": _any("seconds")}
_PROBE: Shape = {
    **_PROBE_HANDLERS,
    **_any("initialDelaySeconds periodSeconds timeoutSeconds successThreshold failureThreshold"),
    **_any("terminationGracePeriodSeconds"),
}
_KEY: Shape = _any("name key optional")
_ENV: Shape = {
    **_any("name value"),
    "valueFrom": {
        "secretKeyRef": _KEY,
        "configMapKeyRef": _KEY,
        "fieldRef": _any("apiVersion fieldPath"),
    },
}
_ENV_FROM: Shape = {
    "prefix": None,
    "secretRef": _any("name optional"),
    "configMapRef": _any("name optional"),
}

# A process has the rights, limits and image of the user who runs the tests: assertions on manifests
# hold these.
_UNCONFINED_CONTAINER = _any(
    "resources securityContext imagePullPolicy terminationMessagePath terminationMessagePolicy"
)
_CONTAINER: Shape = {
    **_any("name image command args workingDir"),
    "env": [_ENV],
    "envFrom": [_ENV_FROM],
    "ports": [_any("name containerPort protocol")],
    "volumeMounts": [_any("name mountPath subPath readOnly")],
    "startupProbe": _PROBE,
    "readinessProbe": _PROBE,
    "livenessProbe": _PROBE,
    "lifecycle": {"preStop": _HOOK_HANDLERS},
    **_UNCONFINED_CONTAINER,
}
_INIT_CONTAINER: Shape = {**_CONTAINER, "restartPolicy": None}

_ITEM: Shape = _any("key path mode")
_VOLUME: Shape = {
    "name": None,
    "emptyDir": _any("medium sizeLimit"),
    "persistentVolumeClaim": _any("claimName readOnly"),
    "configMap": {**_any("name optional defaultMode"), "items": [_ITEM]},
    "secret": {**_any("secretName optional defaultMode"), "items": [_ITEM]},
}

# What the scheduler, the API server or the container runtime does: no process is the place for it.
_UNCONFINED_POD = _any(
    "securityContext affinity nodeSelector nodeName tolerations topologySpreadConstraints "
    "schedulerName priority priorityClassName preemptionPolicy runtimeClassName imagePullSecrets "
    "automountServiceAccountToken serviceAccount enableServiceLinks dnsPolicy hostname subdomain"
)
_POD: Shape = {
    **_any("restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds serviceAccountName"),
    "containers": [_CONTAINER],
    "initContainers": [_INIT_CONTAINER],
    "volumes": [_VOLUME],
    **_UNCONFINED_POD,
}

# may be spelled out, as false
_OFF_ONLY = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")


def check(name: str, spec: Mapping[str, Any]) -> None:
    """Raises Refused where a pod's spec has a field that is neither kept nor named above."""
    asked = {field: value for field, value in spec.items() if field not in _OFF_ONLY or value}
    _check(asked, _POD, f"pod {name!r}: spec")
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(kind, ())):
            _check_container(container, f"pod {name!r}: spec.{kind}[{number}]")
            _check_mounts(container, spec, f"pod {name!r}: spec.{kind}[{number}]")


def _check(found: Mapping[str, Any], shape: Shape, path: str) -> None:
    for field, value in found.items():
        if field not in shape:
            raise Refused(
                f"{path}.{field}: the process kubelet does not keep this field; here it keeps "
                f"{_names(shape)}"
            )
        inner = shape[field]
        if isinstance(inner, list):
            for number, one in enumerate(value):
                _check(one, inner[0], f"{path}.{field}[{number}]")
        elif inner is not None:
            _check(value, inner, f"{path}.{field}")


def _check_container(container: Mapping[str, Any], path: str) -> None:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in container:
            _check_handler(container[kind], _PROBE_HANDLERS, f"{path}.{kind}")
    lifecycle = container.get("lifecycle", {})
    if "preStop" in lifecycle:
        _check_handler(lifecycle["preStop"], _HOOK_HANDLERS, f"{path}.lifecycle.preStop")
    if container.get("restartPolicy", "Always") != "Always":
        raise Refused(
            f"{path}.restartPolicy is {container['restartPolicy']!r}: a container's own may only "
            "be Always"
        )


def _check_mounts(container: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> None:
    volumes = [volume["name"] for volume in spec.get("volumes", ())]
    for number, mount in enumerate(container.get("volumeMounts", ())):
        if mount["name"] not in volumes:
            raise Refused(
                f"{path}.volumeMounts[{number}] is of volume {mount['name']!r}: the pod has "
                f"{volumes}"
            )


def _check_handler(found: Mapping[str, Any], handlers: Shape, path: str) -> None:
    if len(found.keys() & handlers.keys()) != 1:
        raise Refused(f"{path} has {sorted(found)}: it wants exactly one of {_names(handlers)}")


def _names(shape: Shape) -> str:
    return ", ".join(sorted(shape))
