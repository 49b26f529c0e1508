"""`penstock worker` that cannot start: one line and an exit status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked import run
from servers import RedisServer

from penstock_cli.doctor import worker as worker_check
from penstock_cli.doctor.worker import check
from penstock_cli.errors import CliError
from penstock_ledger import open_database
from penstock_ledger.errors import EXIT_USAGE
from penstock_workers.settings import WorkerSettings


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/p.db"
    database = open_database(url)
    database.migrate()
    database.close()
    return url


def settings(database_url: str, redis_url: str) -> WorkerSettings:
    return WorkerSettings(lane="api", database_url=database_url, redis_url=redis_url)


def test_a_worker_that_can_start_passes(database_url: str, redis_server: RedisServer) -> None:
    """Nothing is said of a database with tables and a Redis that answers (D27)."""
    check(settings(database_url, redis_server.url))


def test_a_wrong_password_ends_at_once(database_url: str, own_redis: RedisServer) -> None:
    """A password that Redis refuses is named at once, without being printed (D27)."""
    own_redis.client().config_set("requirepass", "right")
    try:
        with pytest.raises(CliError, match=r"Redis refuses.*PENSTOCK_REDIS_URL") as caught:
            check(settings(database_url, own_redis.url.replace("://", "://:wrong-one@")))
        assert "wrong-one" not in str(caught.value)
        with pytest.raises(CliError, match="Redis refuses"):
            check(settings(database_url, own_redis.url))
    finally:
        own_redis.client(password="right").config_set("requirepass", "")


def test_servers_that_are_away_are_waited_for_a_while(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No Redis and no database are asked again for a named time, then end in one line with the
    setting (D27)."""
    monkeypatch.setattr(worker_check, "WAIT_S", 0.2)
    monkeypatch.setattr(worker_check, "ASK_AGAIN_S", 0.1)
    with pytest.raises(CliError, match=r"did not answer within 0.2 s .*PENSTOCK_REDIS_URL"):
        check(settings(database_url, "redis://127.0.0.1:1/0"))
    with pytest.raises(CliError, match=r"did not answer within 0.2 s .*PENSTOCK_DATABASE_URL"):
        check(settings("postgresql://u:secret@127.0.0.1:1/x", "redis://127.0.0.1:1/0"))
    told = capsys.readouterr().err
    assert 1 <= len(told.splitlines()) <= 2, "one line per server"
    assert "secret" not in told


def test_an_engine_that_cannot_start_is_one_line(
    tmp_path: Path, database_url: str, redis_server: RedisServer
) -> None:
    """What a lane finds only as it starts ends its worker with the reason and the status of bad
    settings, and no traceback (H4)."""
    environment = os.environ | {
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_REDIS_URL": redis_server.url,
        "PENSTOCK_GPU__CHAT_TEMPLATE": "{% for nothing %}",
    }
    worker = ["worker", "--lane", "gpu", "--model", str(tmp_path)]
    ended = run(worker, 60, env=environment, cwd=tmp_path)
    assert ended.returncode == EXIT_USAGE
    assert "CRITICAL" in ended.stderr
    assert "this worker cannot start: " in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


@pytest.mark.parametrize(
    ("lane", "word"),
    [
        ("gpu", "needs a model"),
        ("gpu --model {folder}/lama", "did you mean '{folder}/llama'?"),
        ("gpu --model /nowhere/at/all", "mount it, or correct it"),
        ("embed", "embed.model"),
        ("nope", "lane 'nope' is not available in this worker; available: api, batch, embed, gpu"),
        ("api", "no Penstock tables"),
    ],
)
def test_known_errors_of_a_worker_are_one_line(tmp_path: Path, lane: str, word: str) -> None:
    """A missing model, an unknown lane and a database without tables end a worker without a
    traceback (D27)."""
    (tmp_path / "p.db").touch()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
    }
    where = environment | {"PENSTOCK_DATABASE_URL": f"sqlite:///{tmp_path}/p.db"}
    (tmp_path / "llama").mkdir()
    words = [word.format(folder=tmp_path) for word in lane.split()]
    ended = run(["worker", "--lane", *words], 60, env=where, cwd=tmp_path)
    assert ended.returncode in (1, 2)
    assert word.format(folder=tmp_path) in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    assert len(ended.stderr.splitlines()) == 1
