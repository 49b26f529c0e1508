"""A real RabbitMQ node of a test's own: its ports, epmd, cookie and folders; on loopback, ended by
the pids we started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import amqp
from redis_sets import write_certificates
from servers import MissingServer, free_port

START_TIMEOUT_S = 60.0  # an Erlang VM on a busy machine
USER, PASSWORD, VHOST = "fleet", "r4bbit/p@ss:word", "jobs"
# Debian's in /usr/sbin changes user and folders
INSTALLED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@dataclass
class RabbitServer:
    """One node. Its queues outlive it on disk."""

    folder: Path
    port: int = field(default_factory=free_port)
    tls_port: int = field(default_factory=free_port)
    dist_port: int = field(default_factory=free_port)
    epmd_port: int = field(default_factory=free_port)
    epmd: subprocess.Popen[bytes] | None = None
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path) -> RabbitServer:
        if not INSTALLED.exists() or shutil.which("epmd") is None:
            raise MissingServer("no rabbitmq-server: install Debian's package rabbitmq-server")
        folder.mkdir(parents=True)
        server = cls(folder)
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{server.port}\n"
            f"listeners.ssl.1 = 127.0.0.1:{server.tls_port}\n"
            f"ssl_options.cacertfile = {folder}/ca.pem\n"
            f"ssl_options.certfile = {folder}/server.pem\n"
            f"ssl_options.keyfile = {folder}/server.key\n"
            "ssl_options.verify = verify_none\n"
            f"default_user = {USER}\n"
            f"default_pass = {PASSWORD}\n"
            f"default_vhost = {VHOST}\n"
        )
        write_certificates(folder)
        (folder / "enabled_plugins").write_text("[].\n")
        server.epmd = subprocess.Popen(
            ["epmd", "-port", str(server.epmd_port), "-address", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server.restart()
        return server

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{VHOST}"

    @property
    def tls_url(self) -> str:
        """Its certificate is signed by the CA that it names."""
        plain = self.url.removeprefix("amqp").replace(str(self.port), str(self.tls_port))
        return f"amqps{plain}?ssl_ca_certs={self.folder / 'ca.pem'}"

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Of a client that is not Penstock's."""
        with amqp.Connection(
            f"127.0.0.1:{self.port}", USER, PASSWORD, virtual_host=VHOST
        ) as connection:
            yield connection.channel()

    def ready(self, queue: str) -> int:
        """Messages that no consumer has been sent."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)

    def purge(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_purge(queue))

    def kill(self) -> None:
        """kill -9: it has no time to close its connections."""
        assert self.process is not None, "the server is not running"
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def restart(self) -> None:
        with (self.folder / "out.log").open("ab") as out:
            self.process = subprocess.Popen(
                [str(INSTALLED)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            with contextlib.suppress(OSError, amqp.AMQPError), self.channel():
                return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"rabbitmq-server did not answer on port {self.port}: {self.text()}")

    def stop(self) -> None:
        for process in (self.process, self.epmd):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.process = None

    def text(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4_000:]

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # where the cookie is
            "LANG": "C.UTF-8",
            # as under systemd: the script becomes the node, so its pid is known
            "NOTIFY_SOCKET": str(folder / "no-listener"),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
