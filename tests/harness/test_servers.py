"""The test servers themselves are real and answer."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import sqlalchemy
from fleet import until
from servers import RedisServer, S3Server


def test_redis_answers_with_our_pid(redis_server: RedisServer) -> None:
    """The redis that tests talk to is the process that they started."""
    assert redis_server.client().info("server")["process_id"] == redis_server.pid


def test_redis_keeps_its_aof_over_a_kill(own_redis: RedisServer) -> None:
    """A killed redis-server comes back with its AOF, and empty after a wipe."""
    own_redis.client().set("kept", "1")
    own_redis.restart()
    assert own_redis.client().get("kept") == b"1"
    own_redis.restart(wipe=True)
    assert own_redis.client().get("kept") is None


def test_postgres_databases_are_fresh(postgres_url: str) -> None:
    """Each test gets an empty PostgreSQL database."""
    engine = sqlalchemy.create_engine(
        postgres_url.replace("postgresql://", "postgresql+psycopg://")
    )
    with engine.connect() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == []
    engine.dispose()


STARTS_POSTGRES = """
import sys
sys.path.insert(0, sys.argv[1])
from servers import Postgres
server = Postgres.start()
print(server.folder, server.handle.get_pid(), flush=True)
sys.stdin.read()
"""


def test_a_killed_test_run_leaves_no_postgres_behind() -> None:
    """Where the tests are killed, their PostgreSQL server ends and its folder is removed all the
    same."""
    tests = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_POSTGRES, tests],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        folder, pid = run.stdout.readline().split()
        run.kill()
    until(lambda: not Path(folder).exists(), 30, "the folder is removed")
    until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the server has ended")


def test_s3_speaks_http(s3_server: S3Server) -> None:
    """moto's S3 answers over real HTTP."""
    s3_server.client().create_bucket(Bucket="fixture")
    with urllib.request.urlopen(f"{s3_server.url}/fixture") as answer:
        assert answer.status == 200
