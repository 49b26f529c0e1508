"""Redis as fleets have it: with TLS and users of its own, and as a master with replicas that
Sentinels watch."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import redis
from servers import START_TIMEOUT_S, MissingServer, RedisServer, free_port, redis_binary

from penstock_ledger import RedisAddress

USER, PASSWORD = "fleet", "p@ss/w:rd"
# What docs/stores.md tells an operator to allow: our keys and kombu's, and nothing that touches
# others' or the server.
ACL = (
    f"user {USER} on >{PASSWORD} ~penstock* ~unacked* ~_kombu.* ~*.pidbox &* +@all -@admin "
    "-@dangerous +info\n"
)
SERVICE = "jobs"
DOWN_AFTER_MS = 1_000


@dataclass
class TlsRedis(RedisServer):
    """One server that speaks TLS only, to one user only."""

    @classmethod
    def start_tls(cls, folder: Path) -> Self:
        """Raises MissingServer where no redis-server was built with TLS."""
        binary = _binary_with_tls()
        folder.mkdir(parents=True)
        write_certificates(folder)
        (folder / "users.acl").write_text(f"user default off\n{ACL}")
        port = free_port()
        server = cls(
            folder,
            port,
            False,
            binary=binary,
            settings=(
                "--port",
                "0",
                "--tls-port",
                str(port),
                "--tls-auth-clients",
                "no",
                "--aclfile",
                str(folder / "users.acl"),
                "--tls-cert-file",
                str(folder / "server.pem"),
                "--tls-key-file",
                str(folder / "server.key"),
                "--tls-ca-cert-file",
                str(folder / "ca.pem"),
            ),
        )
        server._launch()
        return server

    @property
    def url(self) -> str:
        login = f"{USER}:{quote(PASSWORD, safe='')}"
        return f"rediss://{login}@127.0.0.1:{self.port}/0?ssl_ca_certs={self.folder / 'ca.pem'}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url, **options)


def _binary_with_tls() -> str:
    """The first on PATH that knows the setting; the one that wheels carry does not."""
    for folder in os.get_exec_path():
        binary = shutil.which("redis-server", path=folder)
        if binary is not None:
            said = subprocess.run(
                [binary, "--tls-port", "none"],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
            if "Bad directive" not in said.stdout + said.stderr:
                return binary
    raise MissingServer("no redis-server with TLS: install Debian's redis-server")


def write_certificates(folder: Path) -> None:
    """``ca.pem``, and ``server.pem`` with ``server.key`` for 127.0.0.1, good for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test CA")])

    def certificate(
        name: x509.Name, key: Any, extension: x509.ExtensionType, *, critical: bool
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            ca_name, name, key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        return builder.add_extension(extension, critical=critical).sign(ca_key, hashes.SHA256())

    server_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(
        certificate(ca_name, ca_key, authority, critical=True).public_bytes(pem)
    )
    server = certificate(server_name, server_key, names, critical=False)
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    (folder / "server.key").write_bytes(
        server_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


@dataclass
class SentinelSet:
    """A master, a replica and three Sentinels, all with passwords."""

    servers: list[RedisServer]
    sentinels: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path) -> Self:
        login = ("--requirepass", PASSWORD, "--masterauth", PASSWORD)
        master = _Member.start(folder / "first", settings=login)
        replica = _Member.start(
            folder / "second", settings=(*login, "--replicaof", "127.0.0.1", str(master.port))
        )
        group = cls([master, replica])
        _until(
            lambda: replica.client().info("replication")["master_link_status"] == "up",
            "the replica follows",
        )
        for number in range(3):
            group._start_sentinel(folder / f"sentinel-{number}", master.port)
        _until(group._is_watched, "the Sentinels know each other and the replica")
        return group

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        password = quote(PASSWORD, safe="")
        return f"sentinel://:{password}@{hosts}/0?service={SERVICE}&sentinel_password={password}"

    def client(self, **options: Any) -> redis.Redis:
        """Of the server that is the master now."""
        return RedisAddress.parse(self.url).connect(**options)

    def master(self) -> RedisServer:
        _, port = self._ask(self.ports[0]).sentinel_get_master_addr_by_name(SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def stop(self) -> None:
        while self.sentinels:
            process = self.sentinels.pop()
            process.kill()
            process.wait()
        for server in self.servers:
            server.stop()

    def _start_sentinel(self, folder: Path, master_port: int) -> None:
        folder.mkdir()
        port = free_port()
        (folder / "sentinel.conf").write_text(
            f'port {port}\nbind 127.0.0.1\ndir {folder}\nrequirepass "{PASSWORD}"\n'
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 2\nsentinel auth-pass {SERVICE} "
            f"{PASSWORD}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\nsentinel "
            f"failover-timeout {SERVICE} 5000\n"
        )
        with (folder / "log").open("wb") as log:
            self.sentinels.append(
                subprocess.Popen(
                    [redis_binary(), str(folder / "sentinel.conf"), "--sentinel"],
                    stdout=log,
                    stderr=log,
                )
            )
        self.ports.append(port)

    def _is_watched(self) -> bool:
        states: list[Any] = [self._ask(port).sentinel_masters()[SERVICE] for port in self.ports]
        return all(
            state["num-other-sentinels"] == 2 and state["num-slaves"] == 1 for state in states
        )

    def _ask(self, port: int) -> Any:
        return redis.Redis(port=port, password=PASSWORD)


class _Member(RedisServer):
    def client(self, **options: Any) -> redis.Redis:
        return super().client(password=PASSWORD, **options)


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        time.sleep(0.05)
    raise RuntimeError(f"not within {START_TIMEOUT_S:g} s: {what}")
