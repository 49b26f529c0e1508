"""The images of Redis and PostgreSQL, played by the servers that tests start: a program of the image
by its name, and its arguments.

What an image has for itself and a process has not: the address to listen on (POD_IP), a user who is
not root, and the signal that ends PostgreSQL.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import redis
from servers import postgres_programs, redis_binary


def redis_server(arguments: list[str]) -> None:
    binary = redis_binary()
    os.execv(binary, [binary, *arguments, "--bind", os.environ["POD_IP"]])


def redis_cli(words: list[str]) -> None:
    client = redis.Redis(os.environ["POD_IP"], password=os.environ["REDISCLI_AUTH"])
    print("PONG" if words == ["ping"] and client.ping() else "?")


def entry_point(_: list[str]) -> None:
    """As docker-entrypoint.sh of the image: the first start makes the database."""
    data, programs = Path(os.environ["PGDATA"]), postgres_programs()
    user = pwd.getpwnam("pgserver").pw_uid if os.geteuid() == 0 else None
    if not data.exists():
        data.mkdir(parents=True)
        secret = data.with_suffix(".password")
        secret.write_text(os.environ["POSTGRES_PASSWORD"])
        for path in (data, secret):
            os.chown(path, -1 if user is None else user, -1)
        made = [f"--username={os.environ['POSTGRES_USER']}", f"--pwfile={secret}"]
        subprocess.run(
            [programs / "initdb", "-D", data, "--auth-host=scram-sha-256", *made],
            check=True,
            user=user,
        )
        subprocess.run(
            [programs / "postgres", "--single", "-D", data, "template1"],
            input=f"create database {os.environ['POSTGRES_DB']}\n".encode(),
            check=True,
            user=user,
        )
    listens = ["-h", os.environ["POD_IP"], "-k", "", "-c", "fsync=off"]
    with subprocess.Popen([programs / "postgres", "-D", data, *listens], user=user) as server:
        # The image's STOPSIGNAL: SIGTERM would wait until its clients have gone.
        signal.signal(signal.SIGTERM, lambda *_: server.send_signal(signal.SIGINT))
        sys.exit(server.wait())


def pg_isready(arguments: list[str]) -> None:
    os.execv(postgres_programs() / "pg_isready", ["pg_isready", *arguments])


PROGRAMS = {
    "redis-server": redis_server,
    "redis-cli": redis_cli,
    "docker-entrypoint.sh": entry_point,
    "pg_isready": pg_isready,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
