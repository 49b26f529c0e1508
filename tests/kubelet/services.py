"""Services of a real cluster for pods that are processes here: one address, behind which the pods
that are ready take turns.

Endpoints refuse loopback addresses. So a pod that is 127.a.b.c on this machine is 10.a.b.c to the
cluster, and only this file knows both.
"""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kubelet.api import Api

CHUNK = 65_536
_HERE, _THERE = "127.", "10."


def in_cluster(address: str) -> str:
    """What the cluster is given as the address of a pod of this machine."""
    return _THERE + address.removeprefix(_HERE)


def on_this_machine(address: str) -> str:
    return _HERE + address.removeprefix(_THERE)


class Service:
    """A free port of loopback that leads where a Service's EndpointSlices say, as kube-proxy has it:
    each connection goes to the next of the pods that are ready at that moment."""

    def __init__(self, api: Api, namespace: str, name: str, port: str) -> None:
        self._slices = (
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            f"?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
        )
        self._api = api
        self._port = port
        self._turns = itertools.count()
        self._listener = _Listener(self.connect)
        self._thread = threading.Thread(target=self._listener.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._listener.server_address[1]}"

    def endpoints(self) -> list[tuple[str, int]]:
        """Pods that are ready, as they are reached here."""
        return sorted(
            (on_this_machine(address), port["port"])
            for one in self._api.call("GET", self._slices)["items"]
            for port in one["ports"] or ()
            if port["name"] == self._port
            for endpoint in one["endpoints"] or ()
            if endpoint["conditions"].get("ready") is not False
            for address in endpoint["addresses"]
        )

    def connect(self) -> socket.socket:
        """Raises OSError where no pod is ready, or the one whose turn it is refuses."""
        ready = self.endpoints()
        if not ready:
            raise ConnectionRefusedError("no pod is ready")
        return socket.create_connection(ready[next(self._turns) % len(ready)])


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._connect = connect

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Copy both ways; where there is no pod, the caller's connection is closed at once."""
        with suppress(OSError), self._connect() as pod:
            back = threading.Thread(target=_copy, args=(pod, request), daemon=True)
            back.start()
            _copy(request, pod)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
