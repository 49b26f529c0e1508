"""Webhooks over TLS, to receivers on this machine with certificates of an authority of their
own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from doors import door, door_settings
from fleet import until
from http_tls import write_authority
from pydantic import ValidationError
from servers import free_port
from standardwebhooks import Webhook

from penstock_gateway.settings import GatewayFields
from penstock_gateway.webhook_delivery import UNREACHABLE, send, trusted
from penstock_ledger import DueDelivery

HOSTS = ("localhost", "127.0.0.1")
SOON_S = 15.0


class Receiver(ThreadingHTTPServer):
    """Keeps what came; answers 204, and 404 elsewhere than at /hook."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a handshake that its client has ended


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((dict(self.headers), body))
        self.send_response(204 if self.path == "/hook" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("authority")
    write_authority(made)
    return made


@contextmanager
def receiver(certificate: Path | None) -> Iterator[Receiver]:
    """With TLS where it has a certificate."""
    server = Receiver()
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def due(port: int, host: str = "localhost", path: str = "hook") -> DueDelivery:
    return DueDelivery(
        "evt_x", "we_x", "{}", 0, f"https://{host}:{port}/{path}", ["whsec_" + "a" * 32]
    )


async def test_certificates_are_checked_and_faults_tell_nothing_of_the_network(
    folder: Path,
) -> None:
    """One of the authority in gateway.webhook_ca_file is right for its own name.

    A certificate of another name or authority, a port without TLS, one where nothing listens and a
    name that is none read alike; the log has the difference."""
    own, system = trusted(folder / "ca.pem"), trusted(None)
    with ExitStack() as open_ones:
        good, other, stranger, plain = (
            open_ones.enter_context(
                receiver(folder / f"{name}.pem" if name else None)
            ).server_address[1]
            for name in ("good", "other", "stranger", "")
        )
        sent = await send(due(good), HOSTS, own)
        assert (sent.status, sent.error) == (204, None)
        assert (await send(due(good, path="elsewhere"), HOSTS, own)).error == "it answered 404"
        faults = [
            await send(due(good), HOSTS, system),
            await send(due(good, "127.0.0.1"), HOSTS, own),
            await send(due(other), HOSTS, own),
            await send(due(stranger), HOSTS, own),
            await send(due(plain), HOSTS, own),
            await send(due(free_port()), HOSTS, own),
            await send(due(443, "nowhere.invalid"), ("nowhere.invalid",), own),
            await send(due(443, "localhost"), (), own),
        ]
    assert {(one.status, one.error) for one in faults} == {(None, UNREACHABLE)}
    assert len({one.why for one in faults}) > 4
    assert "CERTIFICATE_VERIFY_FAILED" in str(faults[0].why)
    assert "private network" in str(faults[-1].why)


def test_a_door_delivers_to_a_receiver_of_its_own_authority(folder: Path, tmp_path: Path) -> None:
    """Signed, by https, with the settings that its operator has: the public authorities know
    nothing of it."""
    settings = door_settings(tmp_path, webhook_hosts=HOSTS, webhook_ca_file=folder / "ca.pem")
    with receiver(folder / "good.pem") as server, door(settings) as url:
        place = f"https://localhost:{server.server_address[1]}/hook"
        hook = httpx2.post(f"{url}/v1/webhooks", json={"url": place}).json()
        assert httpx2.post(f"{url}/v1/webhooks/{hook['id']}/test").status_code == 202
        until(lambda: server.got, SOON_S, "it arrives")
        headers, body = server.got[0]
        assert Webhook(hook["secret"]).verify(body, headers)["type"] == "webhook.test"


def test_registering_a_url_tells_nothing_of_the_network(tmp_path: Path) -> None:
    """A name that is none and one that leads inside are refused alike; an address is refused by its
    looks."""
    with door(door_settings(tmp_path)) as url:
        for host, why in (
            ("nowhere.invalid", UNREACHABLE),
            ("localhost", UNREACHABLE),
            ("10.0.0.1", "is not an address of the public internet"),
        ):
            refused = httpx2.post(f"{url}/v1/webhooks", json={"url": f"https://{host}/hook"})
            assert (refused.status_code, refused.json()["detail"]) == (400, f"url: {host} {why}")


def test_a_file_without_certificates_is_refused_at_the_start(tmp_path: Path) -> None:
    """Not at the first webhook."""
    empty = tmp_path / "ca.pem"
    empty.write_text("no certificate")
    for path in (empty, tmp_path / "nowhere.pem"):
        with pytest.raises(
            ValidationError, match=r"webhook_ca_file\n.*give a PEM file of certificates"
        ):
            GatewayFields(webhook_ca_file=path)
