"""The test servers themselves are real and answer."""

from __future__ import annotations

import urllib.request

import sqlalchemy
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
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert sqlalchemy.inspect(connection).get_table_names() == []
    engine.dispose()


def test_s3_speaks_http(s3_server: S3Server) -> None:
    """moto's S3 answers over real HTTP."""
    s3_server.client().create_bucket(Bucket="fixture")
    with urllib.request.urlopen(f"{s3_server.url}/fixture") as answer:
        assert answer.status == 200
