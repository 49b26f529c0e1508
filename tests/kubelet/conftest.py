"""Small pods for tests of the kubelet itself: containers of `sh`, and fifty times the pace between
probes and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubelet import Image, Kubelet, Namespace, RunningPod

PACE = 50.0  # ten seconds of back-off are 0.2 s
SOON_S = 15.0
IMAGES = {"busybox": Image()}
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.02; done"
DEAF = "trap '' TERM; while :; do sleep 0.02; done"

Start = Callable[..., RunningPod]


@pytest.fixture
def namespace() -> Namespace:
    namespace = Namespace()
    namespace.put("Secret", "keys", openai="sk-1")
    namespace.put("ConfigMap", "texts", **{"a.toml": "[a]", "MODE": "fast"})
    return namespace


@pytest.fixture
def kubelet(tmp_path: Path, namespace: Namespace) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "kubelet", namespace, images=IMAGES, pace=PACE) as kubelet:
        yield kubelet


@pytest.fixture
def start(kubelet: Kubelet) -> Start:
    """``start(main, init=[…], restartPolicy="Never")``: a pod of these containers."""

    def pod(
        *containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **spec: Any
    ) -> RunningPod:
        return kubelet.run(
            {
                "metadata": {"name": f"pod-{len(kubelet.pods)}", "labels": {"team": "a"}},
                "spec": {"containers": list(containers), "initContainers": init or [], **spec},
            }
        )

    return pod


def sh(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "busybox:1.36", "command": ["sh", "-c", script], **more}


def when(*command: str, **more: Any) -> dict[str, Any]:
    """A probe by command."""
    return {"exec": {"command": list(command)}, "periodSeconds": 2, **more}
