"""A real MariaDB server in a folder of its own."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import START_TIMEOUT_S, MissingServer, free_port


@dataclass
class MariaDb:
    """One mariadbd process on a free loopback port, without system tables: every user may do
    everything."""

    port: int
    process: subprocess.Popen[bytes]
    names: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def start(cls, folder: Path) -> MariaDb:
        binary = shutil.which("mariadbd") or shutil.which("/usr/sbin/mariadbd")
        if binary is None:
            raise MissingServer("no mariadbd: install Debian's package mariadb-server-core")
        data = folder / "data"
        data.mkdir(parents=True)
        port = free_port()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    binary,
                    "--no-defaults",
                    f"--basedir={Path(binary).resolve().parents[1]}",
                    f"--datadir={data}",
                    "--skip-grant-tables",
                    "--bind-address=127.0.0.1",
                    f"--port={port}",
                    f"--socket={folder}/s",
                    f"--user={getpass.getuser()}",
                    "--innodb-buffer-pool-size=16M",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        server = cls(port, process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            # whatever a client says of a server that is not there yet
            with contextlib.suppress(Exception):
                server.client().close()
                return server
            time.sleep(0.05)
        server.stop()
        raise RuntimeError(
            f"mariadbd did not answer on port {port}: {(folder / 'log').read_text()[-2000:]}"
        )

    def client(self) -> Any:
        import pymysql

        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)

    def new_database(self) -> str:
        """The URL of a fresh, empty one."""
        name = f"test_{next(self.names)}"
        with contextlib.closing(self.client()) as client, client.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"mysql://root@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
