"""What a process finds around it in place of a container's: variables, paths, and nothing of the
machine that it did not get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleet import until

from kubelet import Kubelet, Namespace, Refused, Unresolved
from kubelet.conftest import DEAF, FOREVER, IMAGES, SOON_S, Start, sh


def test_variables_come_from_everywhere(start: Start) -> None:
    """Values, Secrets, ConfigMaps and the pod itself; $(NAME) is what was said before it; later
    entries win."""
    env = [
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "texts", "key": "MODE"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {
            "name": "GONE",
            "valueFrom": {"secretKeyRef": {"name": "gone", "key": "x", "optional": True}},
        },
        {"name": "BOTH", "value": "$(KEY)-$(MODE)-$(UNSET)-$$(KEY)"},
        {"name": "openai", "value": "later"},
    ]
    script = 'echo "$KEY $MODE $POD $TEAM ${GONE-unset} $BOTH $openai $1"'
    main = sh(
        "main", script, env=env, envFrom=[{"secretRef": {"name": "keys"}}], args=["sh", "$(MODE)"]
    )
    pod = start(main, restartPolicy="Never")
    assert pod.wait(SOON_S) == "Succeeded"
    assert (
        pod.log("main").strip()
        == f"sk-1 fast {pod.name} a unset sk-1-fast-$(UNSET)-$(KEY) later fast"
    )


def test_paths_are_those_of_its_volumes(start: Start) -> None:
    """What a manifest says of mounted paths holds in commands, variables and probes; containers
    share volumes."""
    mounts = [
        {"name": "shared", "mountPath": "/run/shared"},
        {"name": "config", "mountPath": "/etc/it"},
    ]
    volumes = [
        {"name": "shared", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "texts"}},
    ]
    first = sh("first", "cat /etc/it/a.toml > /run/shared/copy", volumeMounts=mounts)
    env = [{"name": "FILE", "value": "/run/shared/copy"}]
    pod = start(
        sh("main", "cat $FILE", volumeMounts=mounts, env=env),
        init=[first],
        volumes=volumes,
        restartPolicy="Never",
    )
    assert pod.wait(SOON_S) == "Succeeded", pod.describe()
    assert pod.log("main") == "[a]"
    assert (pod.volume("shared") / "copy").exists()


def test_what_is_not_there_keeps_a_pod_waiting(start: Start) -> None:
    """A misspelt key of a Secret is no start; the status names the key and the Secret."""
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openay"}}}]
    pod = start(sh("main", FOREVER, env=env))
    until(
        lambda: "reason" in pod.status["containerStatuses"][0]["state"]["waiting"],
        SOON_S,
        "it waits",
    )
    until(lambda: "message" in pod.container("main").state["waiting"], SOON_S, "it says for what")
    waiting = pod.container("main").state["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    assert "couldn't find key 'openay' in secret 'keys'" in waiting["message"]
    assert not pod.is_ready
    pod.delete()
    with pytest.raises(Unresolved, match="configmap 'gone' not found"):
        start(sh("main", FOREVER), volumes=[{"name": "config", "configMap": {"name": "gone"}}])


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            {"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]},
            "spec.volumes\\[0\\].hostPath: the process kubelet does not keep this field",
        ),
        ({"hostNetwork": True}, "spec.hostNetwork: the process kubelet does not keep"),
    ],
)
def test_the_machine_itself_is_refused(start: Start, spec: dict[str, Any], complaint: str) -> None:
    """A manifest reaches no folder and no network of this machine by asking for it."""
    with pytest.raises(Refused, match=complaint):
        start(sh("main", FOREVER), **spec)


def test_nothing_outlives_the_kubelet(tmp_path: Path, namespace: Namespace) -> None:
    """Processes of pods, and those that they have started, are gone when it ends."""
    with Kubelet(tmp_path / "kubelet", namespace, images=IMAGES) as kubelet:
        pod = kubelet.run(
            {
                "metadata": {"name": "p"},
                "spec": {"containers": [sh("main", f"({DEAF}) & echo $! > child; {DEAF}")]},
            }
        )
        child = tmp_path / "kubelet" / "1-p" / "root" / "main" / "child"
        until(lambda: child.exists() and child.read_text().strip(), SOON_S, "its child runs")
        pids = [pod.container("main").pid, int(child.read_text())]
    for pid in pids:
        assert pid is not None
        until(lambda pid=pid: not _runs(pid), SOON_S, f"{pid} has ended")  # type: ignore[misc]


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # also where it ends while it is read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
