"""A Service leads where its EndpointSlices say, and nowhere else."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from kubelet import Api, Service
from kubelet.services import in_cluster, on_this_machine

PODS = ("127.77.1.1", "127.77.1.2")


class Pod(threading.Thread):
    """Answers each connection with its address, once the caller has said something."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server((address, 0))
        self.address, self.port = self.listener.getsockname()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(self.address.encode())


def endpoint(pod: Pod, *, ready: bool | None = True) -> dict[str, Any]:
    """A slice of one pod, as the controller of EndpointSlices writes it."""
    conditions = {} if ready is None else {"ready": ready}
    found = {"addresses": [in_cluster(pod.address)], "conditions": conditions}
    ports = [{"name": "metrics", "port": 1}, {"name": "http", "port": pod.port}]
    return {"ports": ports, "endpoints": [found]}


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    pods = [Pod(address) for address in PODS]
    for pod in pods:
        pod.start()
    yield pods
    for pod in pods:
        pod.listener.close()


@pytest.fixture
def slices() -> list[dict[str, Any]]:
    """What the API server says; a test changes it."""
    return []


@pytest.fixture
def service(slices: list[dict[str, Any]]) -> Iterator[Service]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"items": slices}).encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api = Api(f"http://127.0.0.1:{server.server_address[1]}", None, None)
        with Service(api, "penstock", "doors", "http") as service:
            yield service
        server.shutdown()


def asked(service: Service) -> str:
    """Who answers; nothing where the connection is closed."""
    host, _, port = service.address.partition(":")
    with closing(socket.create_connection((host, int(port)))) as connection, suppress(OSError):
        connection.sendall(b"who?")
        return connection.recv(100).decode()
    return ""


def test_an_address_of_here_is_another_to_the_cluster() -> None:
    """Endpoints take no loopback address: a pod of here is one of 10.0.0.0/8 to the cluster."""
    assert in_cluster("127.3.2.1") == "10.3.2.1"
    assert on_this_machine("10.3.2.1") == "127.3.2.1"


def test_pods_that_are_ready_take_turns(
    service: Service, slices: list[dict[str, Any]], pods: list[Pod]
) -> None:
    """Connections go to one after the other; a pod of which nothing is said counts as ready."""
    slices += [endpoint(pods[0]), endpoint(pods[1], ready=None)]
    assert [asked(service) for _ in range(4)] == [*PODS, *PODS]


def test_a_pod_that_is_not_ready_gets_nothing(
    service: Service, slices: list[dict[str, Any]], pods: list[Pod]
) -> None:
    """What the cluster says of a pod counts from the next connection on; without one that is
    ready, the caller's is closed."""
    slices += [endpoint(pods[0], ready=False), endpoint(pods[1])]
    assert [asked(service) for _ in range(2)] == [PODS[1]] * 2
    slices.clear()
    assert asked(service) == ""
