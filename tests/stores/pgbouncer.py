"""A real PgBouncer in transaction mode, in front of a test's PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from servers import START_TIMEOUT_S, MissingServer, free_port

# fewer than any fleet has clients: transactions of all of them meet in these
SERVER_CONNECTIONS = 3


@dataclass
class PgBouncer:
    """One pgbouncer process on a free loopback port."""

    port: int
    database: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, postgres_url: str) -> PgBouncer:
        """In front of the database of ``postgres_url``, which is reached over a unix socket."""
        binary = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if binary is None:
            raise MissingServer("no pgbouncer: install Debian's package pgbouncer")
        parts = urlsplit(postgres_url)
        sockets = Path(parse_qs(parts.query)["host"][0])
        database, port = parts.path.lstrip("/"), free_port()
        folder.mkdir()
        config = folder / "pgbouncer.ini"
        config.write_text(
            "[databases]\n"
            f"{database} = host={sockets} dbname={database} user={parts.username}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\nadmin_users = admin\npool_mode = transaction\n"
            f"default_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 100\n"
        )
        # it refuses to be root, and only the server's own user may open its socket
        if os.geteuid() == 0:
            for parent in (folder, *list(folder.parents)[:-2]):
                parent.chmod(parent.stat().st_mode | 0o011)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binary, str(config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                user=sockets.owner() if os.geteuid() == 0 else None,
            )
        pooler = cls(port, database, process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=0.2),
            ):
                return pooler
            time.sleep(0.02)
        pooler.stop()
        raise RuntimeError(
            f"pgbouncer did not answer on port {port}: {(folder / 'log').read_text()}"
        )

    @property
    def url(self) -> str:
        return f"postgresql://app@127.0.0.1:{self.port}/{self.database}"

    def show(self, what: str) -> list[dict[str, Any]]:
        """An answer of its console, such as CLIENTS or SERVERS, for our database."""
        address = f"host=127.0.0.1 port={self.port} dbname=pgbouncer user=admin"
        with psycopg.connect(address, autocommit=True) as console:
            cursor = psycopg.ClientCursor(console)
            cursor.execute(f"SHOW {what}".encode())
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [row for row in rows if row["database"] == self.database]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
