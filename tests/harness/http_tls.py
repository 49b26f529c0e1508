"""What a client makes of certificates, in a process of its own: SSL_CERT_FILE is read once."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
from pathlib import Path
from typing import Any, Literal

from http_servers import Peer, canned, raw_server

from penstock_workers.http import HttpClient, HttpError, Target, make_client

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ONCE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
OTHER_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def write_authority(folder: Path) -> None:
    """``ca.pem``, and from it ``good.pem`` for localhost and ``other.pem`` for 10.0.0.1;
    ``stranger.pem`` is from elsewhere."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM

    def certificate(name: str, names: list[x509.GeneralName], issuer: str) -> bytes:
        made = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            key.public_key(),
            x509.random_serial_number(),
            now - datetime.timedelta(hours=1),
            now + datetime.timedelta(days=1),
        )
        # what Python asks for since 3.13 (VERIFY_X509_STRICT)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        made = made.add_extension(identifier, critical=False)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        else:
            may_sign = x509.KeyUsage(key_cert_sign=True, **dict.fromkeys(OTHER_USES, False))
            made = (
                made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(may_sign, critical=True)
                .add_extension(
                    x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
                )
            )
        return made.sign(key, hashes.SHA256()).public_bytes(pem)

    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(certificate("ca", [], "ca"))
    local = x509.DNSName("localhost")
    (folder / "good.pem").write_bytes(private + certificate("good", [local], "ca"))
    other = x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
    (folder / "other.pem").write_bytes(private + certificate("other", [other], "ca"))
    (folder / "stranger.pem").write_bytes(private + certificate("stranger", [local], "stranger"))


async def main(name: Literal["lean", "aiohttp"], folder: str) -> None:
    """Prints as JSON what became of each case."""
    client = make_client(name)
    names: list[str | None] = []
    resumed: list[bool] = []

    def context(certificate: str) -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(Path(folder) / certificate)
        return made

    good = context("good.pem")
    good.sni_callback = lambda _, name, __: names.append(name)

    async def once(peer: Peer) -> None:
        resumed.append(peer.writer.get_extra_info("ssl_object").session_reused)
        await peer.request()
        await peer.send(ONCE)

    seen: dict[str, Any] = {}
    async with raw_server(canned(OK), tls=good) as server:
        seen["trusted"] = await ask(client, server.url.replace("127.0.0.1", "localhost"))
        seen["names sent"] = names
    async with raw_server(canned(OK), tls=context("other.pem")) as server:
        seen["other host"] = await ask(client, server.url)
    async with raw_server(canned(OK), tls=context("stranger.pem")) as server:
        seen["stranger"] = await ask(client, server.url.replace("127.0.0.1", "localhost"))
    async with raw_server(lambda peer: peer.send(OK)) as server:
        seen["no TLS"] = await ask(client, server.url.replace("http", "https"))
    async with raw_server(once, tls=context("good.pem")) as server:
        for _ in range(3):
            await ask(client, server.url.replace("127.0.0.1", "localhost"))
        seen["sessions taken up"] = resumed
    await client.close()
    print(json.dumps(seen))


async def ask(client: HttpClient, url: str) -> str:
    try:
        answer = await client.post(Target.of(url), b"{}", headers={}, timeout_s=10)
    except HttpError as error:
        return f"{type(error).__name__}: {error}"
    return f"{answer.status} {answer.body.decode()}"
