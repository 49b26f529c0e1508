"""What the kubelet does not keep is refused, with its path, and never passed over in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubelet import Image, Kubelet, Namespace, Refused, one_pod
from kubelet.fields import check

GOOD: dict[str, Any] = {"name": "main", "image": "busybox"}
GET: dict[str, Any] = {"httpGet": {"path": "/", "port": 1}}


def pod(container: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containers": [GOOD | container], **more}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "host volume": (
        pod({}, volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        "spec.volumes[0].hostPath",
    ),
    "projected volume": (
        pod({}, volumes=[{"name": "v", "projected": {}}]),
        "spec.volumes[0].projected",
    ),
    "host network": (pod({}, hostNetwork=True), "spec.hostNetwork"),
    "shared processes": (pod({}, shareProcessNamespace=True), "spec.shareProcessNamespace"),
    "host names": (pod({}, hostAliases=[]), "spec.hostAliases"),
    "ephemeral container": (pod({}, ephemeralContainers=[]), "spec.ephemeralContainers"),
    "postStart": (pod({"lifecycle": {"postStart": GET}}), "spec.containers[0].lifecycle.postStart"),
    "stop signal": (
        pod({"lifecycle": {"stopSignal": "SIGINT"}}),
        "spec.containers[0].lifecycle.stopSignal",
    ),
    "grpc": (
        pod({"livenessProbe": {"grpc": {"port": 1}}}),
        "spec.containers[0].livenessProbe.grpc",
    ),
    "misspelt probe": (
        pod({"readinessProbe": GET | {"periodSecond": 1}}),
        "readinessProbe.periodSecond",
    ),
    "misspelt field": (pod({"comand": ["sh"]}), "spec.containers[0].comand"),
    "terminal": (pod({"tty": True}), "spec.containers[0].tty"),
    "host port": (
        pod({"ports": [{"containerPort": 1, "hostPort": 1}]}),
        "spec.containers[0].ports[0].hostPort",
    ),
    "sub-path by variable": (
        pod(
            {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(X)"}]},
            volumes=[{"name": "v"}],
        ),
        "volumeMounts[0].subPathExpr",
    ),
    "limits as variables": (
        pod(
            {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}
        ),
        "spec.containers[0].env[0].valueFrom.resourceFieldRef",
    ),
    "own restart policy": (pod({"restartPolicy": "Always"}), "spec.containers[0].restartPolicy"),
    "init container's": (
        pod({}, initContainers=[{**GOOD, "stdin": True}]),
        "spec.initContainers[0].stdin",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_field_that_is_not_kept_is_refused(what: str) -> None:
    """The error names the pod, the field's path, and the fields that are kept in its place."""
    spec, path = REFUSED[what]
    with pytest.raises(Refused) as refused:
        check("p", spec)
    text = str(refused.value)
    assert text.startswith("pod 'p': spec.")
    assert f"{path}: the process kubelet does not keep this field; here it keeps " in text


@pytest.mark.parametrize(
    ("container", "complaint"),
    [
        (
            {"livenessProbe": {"periodSeconds": 1}},
            "livenessProbe has ['periodSeconds']: it wants exactly one of exec",
        ),
        (
            {"livenessProbe": {**GET, "exec": {"command": ["true"]}}},
            "it wants exactly one of exec, httpGet, tcpSocket",
        ),
        (
            {"lifecycle": {"preStop": {}}},
            "lifecycle.preStop has []: it wants exactly one of exec, httpGet, sleep",
        ),
        (
            {"volumeMounts": [{"name": "gone", "mountPath": "/g"}]},
            "is of volume 'gone': the pod has []",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(container: dict[str, Any], complaint: str) -> None:
    """A probe or hook without a question or with two, and a mount of a volume that is not there,
    name what is wrong."""
    with pytest.raises(Refused) as refused:
        check("p", pod(container))
    assert complaint in str(refused.value)


def test_only_a_sidecar_has_a_restart_policy_of_its_own() -> None:
    """An init container may say Always, and nothing else."""
    check("p", pod({}, initContainers=[{**GOOD, "restartPolicy": "Always"}]))
    with pytest.raises(Refused, match="restartPolicy is 'OnFailure'"):
        check("p", pod({}, initContainers=[{**GOOD, "restartPolicy": "OnFailure"}]))


def test_what_a_cluster_fills_in_is_taken() -> None:
    """Fields that the scheduler, the runtime or the API server's defaults add mean nothing for a
    process, and pass."""
    filled = {
        "resources": {"limits": {"cpu": "1"}},
        "securityContext": {"runAsUser": 1},
        "imagePullPolicy": "Always",
    }
    check(
        "p",
        pod(
            filled,
            nodeName="n",
            schedulerName="s",
            tolerations=[],
            hostNetwork=False,
            dnsPolicy="Default",
        ),
    )


@pytest.mark.parametrize(
    ("container", "complaint"),
    [
        (
            {"image": "registry:5000/other:1"},
            "image 'registry:5000/other:1' has no program here: only busybox have",
        ),
        (
            {"env": [{"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "status.zone"}}}]},
            "container 'main': ZONE is the pod's 'status.zone': known are",
        ),
    ],
)
def test_a_pod_is_refused_before_it_starts(
    container: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    """An image without a program and a field of the pod that is not known are refused by `run`, not
    while the pod runs."""
    with Kubelet(tmp_path, Namespace(), images={"busybox": Image()}) as kubelet:
        with pytest.raises(Refused) as refused:
            kubelet.run({"metadata": {"name": "p"}, "spec": pod(container)})
        assert kubelet.pods == []
    assert complaint in str(refused.value)


def test_a_workload_that_makes_no_pods_is_refused() -> None:
    """Of a Service or a DaemonSet no pod is made here, and the error says of what one is."""
    with pytest.raises(
        Refused, match="DaemonSet 'd': pods are made of Deployment, StatefulSet, Job and Pod"
    ):
        one_pod({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {}})
