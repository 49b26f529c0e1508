"""The rules on real processes, of `sh`: order, probes, restarts and signals.

To the second they are in test_timing.py."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from fleet import until

from kubelet import Did, Kubelet, RunningPod
from kubelet.conftest import DEAF, FOREVER, SOON_S, Start, sh, when


def order(kubelet: Kubelet, pod: RunningPod, *did: Did) -> list[tuple[str, Did]]:
    return kubelet.journal.order(pod.name, *did)


def test_what_starts_when(kubelet: Kubelet, start: Start, tmp_path: Path) -> None:
    """Init containers one after another; a sidecar holds back what follows it until its startup
    probe says yes."""
    loaded = tmp_path / "loaded"
    side = sh(
        "side",
        FOREVER,
        restartPolicy="Always",
        startupProbe=when("test", "-e", str(loaded), failureThreshold=500),
    )
    pod = start(
        sh("main", "exit 0"),
        init=[sh("one", "exit 0"), side, sh("two", "exit 0")],
        restartPolicy="Never",
    )
    until(
        lambda: kubelet.journal.of(pod.name, Did.UNHEALTHY, container="side"),
        SOON_S,
        "the sidecar is asked",
    )
    assert (pod.phase, order(kubelet, pod, Did.START)) == (
        "Pending",
        [("one", Did.START), ("side", Did.START)],
    )
    loaded.touch()
    assert pod.wait(SOON_S) == "Succeeded", pod.describe()
    assert order(kubelet, pod, Did.START, Did.UP, Did.EXIT, Did.TERM) == [
        ("one", Did.START),
        ("one", Did.UP),
        ("one", Did.EXIT),
        ("side", Did.START),
        ("side", Did.UP),
        ("two", Did.START),
        ("two", Did.UP),
        ("two", Did.EXIT),
        ("main", Did.START),
        ("main", Did.UP),
        ("main", Did.EXIT),
        ("side", Did.TERM),
        ("side", Did.EXIT),
    ]


def test_what_ends_when(kubelet: Kubelet, start: Start) -> None:
    """preStop, then SIGTERM to main containers, then to sidecars in reverse; SIGKILL when the grace
    period is over in all."""
    sides = [sh(name, FOREVER, restartPolicy="Always") for name in ("a", "b")]
    main = sh("main", DEAF, lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "exit 0"]}}})
    pod = start(main, init=sides, terminationGracePeriodSeconds=1)
    until(lambda: pod.is_ready, SOON_S, "the pod is ready")
    pod.delete()
    assert order(kubelet, pod, Did.PRE_STOP, Did.TERM, Did.KILL, Did.EXIT) == [
        ("main", Did.PRE_STOP),
        ("main", Did.TERM),
        ("main", Did.KILL),
        ("main", Did.EXIT),
        ("b", Did.TERM),
        ("b", Did.EXIT),
        ("a", Did.TERM),
        ("a", Did.EXIT),
    ]
    assert [pod.exit_code(name) for name in ("main", "a", "b")] == [137, 0, 0]
    term, kill = kubelet.journal.of(pod.name, Did.TERM, Did.KILL, container="main")
    assert 2.0 <= kill.at - term.at < 4.0  # kubelet's least window is 2 s
    assert pod.status["conditions"][-1] == {"type": "Ready", "status": "False"}


def test_probes_decide(kubelet: Kubelet, start: Start, tmp_path: Path) -> None:
    """Readiness follows its probe both ways and restarts no container; liveness restarts after its
    threshold."""
    ready, alive = tmp_path / "ready", tmp_path / "alive"
    alive.touch()
    main = sh(
        "main",
        FOREVER,
        readinessProbe=when("test", "-e", str(ready), failureThreshold=1),
        livenessProbe=when("test", "-e", str(alive), failureThreshold=3),
    )
    pod = start(main)
    until(lambda: kubelet.journal.of(pod.name, Did.ALIVE), SOON_S, "it is asked")
    assert (pod.phase, pod.is_ready) == ("Running", False)
    ready.touch()
    until(lambda: pod.is_ready, SOON_S, "it is ready")
    ready.unlink()
    until(lambda: not pod.is_ready, SOON_S, "it is not ready any more")
    assert pod.container("main").restarts == 0
    alive.unlink()
    until(lambda: pod.container("main").restarts == 1, SOON_S, "it is restarted")
    failed = kubelet.journal.of(pod.name, Did.UNHEALTHY, Did.TERM, container="main")
    liveness = [
        event.did
        for event in failed
        if event.did is Did.TERM or event.message.startswith("liveness")
    ]
    assert liveness[:4] == [Did.UNHEALTHY] * 3 + [Did.TERM]
    alive.touch()


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def test_probes_over_the_network(kubelet: Kubelet, start: Start) -> None:
    """httpGet wants 200 to 399, tcpSocket a connection; ports have names, and a pod has an address
    of its own."""
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    elsewhere = {"host": "127.0.0.1"}
    good = {"httpGet": {"path": "/health", "port": "web", **elsewhere}, "periodSeconds": 2}
    bad = {"httpGet": {"path": "/", "port": port, **elsewhere}, "periodSeconds": 2}
    ports = [{"name": "web", "containerPort": port}]
    tcp = {"tcpSocket": {"port": "web"}, "periodSeconds": 2}
    try:
        well = start(sh("main", FOREVER, ports=ports, readinessProbe=good))
        ill = start(
            sh("main", FOREVER, readinessProbe=bad),
            sh("tcp", FOREVER, ports=ports, readinessProbe=tcp),
        )
        until(lambda: well.is_ready, SOON_S, "it is ready")
        until(lambda: len(kubelet.journal.of(ill.name, Did.UNHEALTHY)) > 3, SOON_S, "both say no")
        told = {
            event.container: event.message for event in kubelet.journal.of(ill.name, Did.UNHEALTHY)
        }
        assert told["main"] == "readiness: HTTP status 404"
        # no server listens on this pod's own address
        assert told["tcp"].startswith("readiness: tcpSocket: ")
        assert len({pod.address for pod in kubelet.pods}) == 2
    finally:
        server.shutdown()
        server.server_close()
