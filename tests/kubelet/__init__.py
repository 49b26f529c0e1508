"""The process kubelet: pods as processes of this machine, by Kubernetes' own rules, for tests of
manifests.

    with Kubelet(folder, Namespace.of(manifests), images={"redis": Image(("redis-server",))}) as
    kubelet:
        pod = kubelet.run(one_pod(deployment))
        until(lambda: pod.is_ready, 30, "the pod is ready")
        pod.delete()
        assert kubelet.journal.order(pod.name, Did.TERM, Did.KILL) == [("main", Did.TERM)]

What it keeps, as Kubernetes 1.29 and newer do:

- the order of init containers, native sidecars and main containers, at the start and at the end;
- startup, readiness and liveness probes (exec, httpGet, tcpSocket), really asked, with their delays
  and thresholds;
- restart policies with their back-off; preStop hooks, SIGTERM, grace periods and SIGKILL; exit
  codes; activeDeadlineSeconds;
- variables from values, Secrets, ConfigMaps and the pod; volumes from emptyDir, claims, Secrets and
  ConfigMaps;
- an address of its own for each pod, on the loopback interface.

What it does not do: confine. A process has no read-only root, no user, no limits and no network
policy of its own; fields.py lists the fields that are passed over for that reason. Every other
field that is not kept is refused with its path, so that no manifest seems to be tested that is not.

An image is a name that the caller maps to a program of this machine (``Image``). ``Node`` joins a
real cluster and runs what its scheduler sends; ``Service`` leads to its pods. The package imports nothing of the project and
nothing of its other tests.
"""

from __future__ import annotations

from kubelet.api import MERGE, Api, ApiError
from kubelet.fields import Refused
from kubelet.images import Image
from kubelet.journal import Did, Event, Journal
from kubelet.kubelet import Kubelet, RunningPod
from kubelet.namespace import Namespace, Unresolved
from kubelet.node import MARK, Node
from kubelet.services import Service
from kubelet.workloads import one_pod

__all__ = [
    "MARK",
    "MERGE",
    "Api",
    "ApiError",
    "Did",
    "Event",
    "Image",
    "Journal",
    "Kubelet",
    "Namespace",
    "Node",
    "Refused",
    "RunningPod",
    "Service",
    "Unresolved",
    "one_pod",
]
