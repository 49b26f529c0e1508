"""Fixtures that start real servers: each on a free port or private socket, in a temporary folder,
ended by its own pid."""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import limiter_fleet
import pytest
from forked import Forked
from hypothesis import HealthCheck, settings
from rewritten import rewrite
from servers import MissingServer, Postgres, RedisServer, S3Server, redis_binary

from penstock_cli.entry import NEW_OBJECTS

# Modules and collected tests are a million objects that stay, and a fifth of a start would be walks
# of Python's collector over them.
gc.set_threshold(NEW_OBJECTS)

# No test fails by how long it takes, not by Hypothesis either. `make test-all` takes the larger one.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.register_profile("whole", settings.get_profile("untimed"), max_examples=300)
settings.load_profile("untimed")

RUNS_IN_CI = os.environ.get("CI") == "true"

# Commands that tests start have the server of the tests, not another one that lies on the PATH of
# this machine.
with suppress(MissingServer):
    os.environ.setdefault("PENSTOCK_REDIS_SERVER", redis_binary())


# Here every test runs on SQLite and on PostgreSQL: the stores, and what speaks SQL itself. What
# stands above them reaches a database through them, and runs on SQLite; on both with
# --both-databases. Outside of tests/integration a test that names both means both.
ON_BOTH = (
    "tests/integration/ledger/",
    "tests/integration/producer/outputs/test_tables_into.py",
    "tests/integration/producer/sources/test_tables.py",
    "tests/integration/workers/control/test_shards.py",
    "tests/integration/workers/lanes/batch/test_crashes.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--both-databases",
        action="store_true",
        help="run the tests above the stores on PostgreSQL, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let each of several processes rewrite its share of the tests, which all of them read."""
    if (worker := getattr(config, "workerinput", None)) and not sys.dont_write_bytecode:
        files = sorted(Path(__file__).parent.rglob("test_*.py"))
        for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
            rewrite(file, config)


def pytest_collection_finish() -> None:
    """Spare Python's collector what stays until the end: a million objects at each full walk."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # extensions complain of what is left at the very end


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the second database to tests of stores, unless both are asked for."""
    if config.getoption("--both-databases"):
        return
    lost = [path for path in ON_BOTH if not (config.rootpath / path).exists()]
    if lost:
        raise pytest.UsageError(f"tests/conftest.py names files that are gone: {lost}")
    left = [item for item in items if _is_second_database(item)]
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


def _is_second_database(item: pytest.Item) -> bool:
    path = item.nodeid.partition("::")[0]
    made_with = getattr(item, "callspec", None)
    if made_with is None or path.startswith(ON_BOTH) or "/integration/" not in path:
        return False
    return "postgresql" in [value for value in made_with.params.values() if isinstance(value, str)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """A missing server skips on a laptop, with its reason, and fails where CI=true."""
    with _explained():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _explained():
        yield


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except MissingServer as error:
        if RUNS_IN_CI:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(_shared_redis: RedisServer) -> RedisServer:
    """A real, empty redis-server shared by the session (flushed for each test).

    Do not kill this one."""
    _shared_redis.flush()
    return _shared_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A real redis-server with AOF that belongs to one test, which may kill and restart it."""
    server = RedisServer.start(tmp_path, appendonly=True)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL server shared by the session. Do not restart this one."""
    server = Postgres.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    """The URL of a fresh, empty database on a real PostgreSQL server."""
    return postgres_server.new_database()


@pytest.fixture
def migrated_url(postgres_server: Postgres) -> str:
    """The URL of a fresh database on a real PostgreSQL server, with the tables of a ledger."""
    return postgres_server.migrated_database()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server that belongs to one test, which may restart it."""
    server = Postgres.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """moto's S3 server over real HTTP on loopback."""
    server = S3Server.start()
    yield server
    server.stop()


@pytest.fixture
def forked_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what this process starts of Penstock forked, as what tests start by ``Penstock`` is."""
    monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.fixture
def play(redis_server: RedisServer) -> Callable[[limiter_fleet.Play], None]:
    """Plays a fleet of limiters on a real Redis in virtual time."""
    return lambda body: limiter_fleet.run(redis_server, body)
