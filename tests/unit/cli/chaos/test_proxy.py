"""The proxy between a fleet and its servers, in front of a server that repeats what it hears."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from penstock_cli.chaos.proxy import Proxy, Way

SOON_S = 0.2  # in which a server on this machine would have answered


class Echo(socketserver.StreamRequestHandler):
    """Remembers what it heard, and says it again."""

    heard: list[bytes]

    def handle(self) -> None:
        while line := self.rfile.readline():
            self.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def heard() -> list[bytes]:
    return []


@pytest.fixture
def proxy(heard: list[bytes]) -> Iterator[Proxy]:
    handler = type("Handler", (Echo,), {"heard": heard})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Proxy(("127.0.0.1", int(server.server_address[1]))) as proxy:
            yield proxy
        server.shutdown()


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def answer(client: socket.socket, timeout_s: float = 10) -> bytes | None:
    """What comes within the time; nothing where the connection is broken, None for silence."""
    client.settimeout(timeout_s)
    try:
        return client.recv(100)
    except TimeoutError:
        return None
    except ConnectionError:
        return b""


def test_it_passes_everything_on(proxy: Proxy) -> None:
    """Both ways, on the same connection."""
    with connected(proxy) as client:
        client.sendall(b"one\n")
        assert answer(client) == b"one\n"


def test_a_partition_delays_and_loses_nothing(proxy: Proxy) -> None:
    """As TCP does behind a switch that comes back: the connection lives and goes on."""
    with connected(proxy) as client:
        client.sendall(b"one\n")
        assert answer(client) == b"one\n"
        with proxy.made(Way.STALLED):
            client.sendall(b"two\n")
            assert answer(client, SOON_S) is None
        assert answer(client) == b"two\n"


def test_an_answer_is_lost_after_the_deed(proxy: Proxy, heard: list[bytes]) -> None:
    """The server has heard it, the client never learns, and its connection breaks."""
    with connected(proxy) as client:
        client.sendall(b"one\n")
        assert answer(client) == b"one\n"
        with proxy.made(Way.DEAF):
            client.sendall(b"two\n")
            assert answer(client, SOON_S) is None
        assert answer(client) == b""
    assert heard == [b"one\n", b"two\n"]


def test_refused_connections_end_at_once(proxy: Proxy) -> None:
    """Those that there are, and new ones; afterwards all is well."""
    with connected(proxy) as before:
        before.sendall(b"one\n")
        assert answer(before) == b"one\n"
        with proxy.made(Way.REFUSED):
            assert answer(before) == b""
            with connected(proxy) as during:
                assert answer(during) == b""
    with connected(proxy) as after:
        after.sendall(b"two\n")
        assert answer(after) == b"two\n"
