"""The private Redis of one-machine mode when its files are damaged, and when it is slow, hangs or
ends: real servers."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import RedisServer

from penstock_cli import redis_server as embedded
from penstock_cli.errors import EmbeddedRedisFailed
from penstock_cli.redis_files import KEPT_COPIES, Endpoint
from penstock_cli.redis_server import EmbeddedRedis
from penstock_cli.run.services import MAX_RESTARTS, RESTART_WINDOW_S, RedisKeeper

NOISE = bytes(range(255, -1, -1)) * 8


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A redis folder; a server that a test left in it is stopped."""
    path = tmp_path / "redis"
    yield path
    left = EmbeddedRedis.find(path)
    if left is not None:
        left.stop()


def filled(folder: Path) -> None:
    """A folder with the files of a server that held something."""
    server = EmbeddedRedis.start(folder)
    for number in range(200):
        server.client.set(f"key-{number}", "x" * 100)
    server.stop()


def files(folder: Path, suffix: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name.endswith(suffix)]


def noise(folder: Path) -> None:
    for path in files(folder, ".aof"):
        path.write_bytes(NOISE)


def zeros_at_the_end(folder: Path) -> None:
    for path in files(folder, ".aof"):
        with path.open("ab") as file:
            file.write(bytes(4096))


def noise_in_the_middle(folder: Path) -> None:
    for path in files(folder, ".aof"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + NOISE + data[len(data) // 2 + len(NOISE) :])


def not_a_file(folder: Path) -> None:
    """Of Redis 6.2, where the AOF is one file; newer ones have a manifest that names a base that is
    not there."""
    manifests = files(folder, ".manifest")
    for path in manifests:
        path.write_bytes(b"file nothing.rdb seq 1 type b\n")
    if not manifests:
        (folder / "appendonly.aof").unlink()
        (folder / "appendonly.aof").mkdir()


@pytest.mark.parametrize("damage", [noise, zeros_at_the_end, noise_in_the_middle, not_a_file])
def test_damaged_files_are_set_aside(folder: Path, damage: Callable[[Path], None]) -> None:
    """A server that cannot read its files starts without them, keeps them under a name, and says so
    in one line (A5)."""
    filled(folder)
    damage(folder)
    told: list[str] = []
    server = EmbeddedRedis.start(folder, told.append)
    assert server.started
    assert server.client.dbsize() == 0
    (aside,) = folder.glob("damaged-*")
    assert list(aside.iterdir())
    assert len(told) == 1
    assert str(aside) in told[0]
    server.stop()
    assert EmbeddedRedis.start(folder, told.append).started
    assert len(told) == 1, "what was written since is read again"


def test_damaged_files_are_kept_a_bounded_number_of_times(folder: Path) -> None:
    """However often files are damaged, only the newest few copies stay on the disk (A5)."""
    filled(folder)
    for _ in range(KEPT_COPIES + 2):
        noise(folder)
        EmbeddedRedis.start(folder).stop()
    assert len(list(folder.glob("damaged-*"))) == KEPT_COPIES


def test_files_are_put_back_when_they_are_not_at_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not start without its files either leaves them where they were, and the
    first error counts (A5)."""
    filled(folder)
    before = {path.name: path.read_bytes() for path in files(folder, ".aof")}
    configuration = embedded._configuration
    monkeypatch.setattr(
        embedded,
        "_configuration",
        lambda *given: configuration(*given) + "maxmemory-policy nonsense\n",
    )
    with pytest.raises(EmbeddedRedisFailed, match="ended at once"):
        EmbeddedRedis.start(folder)
    assert {path.name: path.read_bytes() for path in files(folder, ".aof")} == before
    assert not list(folder.glob("damaged-*"))


def test_a_port_that_is_taken_meanwhile_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another server takes the port after the look at it, the private one takes another port,
    and its files are not suspected."""
    deep = tmp_path / ("d" * 90) / "redis"
    filled(deep)
    first = EmbeddedRedis.start(deep)
    kept = first.client.dbsize()
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    other = RedisServer(tmp_path, first.endpoint.port, appendonly=False)
    other._launch()
    looks = iter([True])
    is_free = embedded._port_is_free
    monkeypatch.setattr(embedded, "_port_is_free", lambda port: next(looks, None) or is_free(port))
    server = EmbeddedRedis.start(deep)
    try:
        assert server.endpoint.port != other.port
        assert server.client.dbsize() == kept > 0
        assert not list(deep.glob("damaged-*"))
        assert EmbeddedRedis.find(deep) == replace(server, started=False)
    finally:
        server.stop()
        other.stop()


def test_ports_that_are_always_taken_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that finds each of its ports taken says so, after a bounded number of them."""
    deep = tmp_path / ("d" * 90) / "redis"
    filled(deep)
    tried: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def taken(_: Path) -> Endpoint:
            tried.append(port)
            return Endpoint(None, port, "secret")

        monkeypatch.setattr(embedded, "_choose_endpoint", taken)
        monkeypatch.setattr(embedded, "ANSWER_TIMEOUT_S", 0.05)
        with pytest.raises(EmbeddedRedisFailed, match="Address already in use"):
            EmbeddedRedis.start(deep)
    assert len(tried) == embedded.PORTS_TRIED
    assert files(deep, ".aof")
    assert not list(deep.glob("damaged-*"))


def test_looking_at_a_server_opens_no_connection(folder: Path) -> None:
    """A run looks at its server several times a second, all night: each connection would leave
    memory behind until it is collected."""
    keeper = RedisKeeper(EmbeddedRedis.start(folder), lambda _: None)
    assert keeper.look() is None
    received: list[int] = []
    for _ in range(2):
        received.append(keeper.server.client.info("stats")["total_connections_received"])
        assert [keeper.look() for _ in range(20)] == [None] * 20
    assert received[0] == received[1]


def test_a_slow_server_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lives and is silent is not ended: the screen says that it is waited for, and
    then it goes on (A8)."""
    monkeypatch.setattr(embedded, "PING_TIMEOUT_S", 0.2)
    server, now = EmbeddedRedis.start(folder), [0.0]
    told: list[str] = []
    keeper = RedisKeeper(server, told.append, clock=lambda: now[0])
    for _ in range(2 * MAX_RESTARTS):
        os.kill(server.pid, signal.SIGSTOP)
        now[0] += 12
        waits = keeper.look()
        assert waits is not None
        assert ("does not answer; waiting for it" in waits.why, waits.more) == (
            True,
            "Silent for 12 s.",
        )
        os.kill(server.pid, signal.SIGCONT)
        server.client.ping()
        assert keeper.look() is None
    assert keeper.server.pid == server.pid
    assert told == []


def test_a_slow_server_is_waited_for_by_the_next_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that finds its server alive and silent waits for it and goes on with it (A8)."""
    monkeypatch.setattr(embedded, "ANSWER_TIMEOUT_S", 0.2)
    first = EmbeddedRedis.start(folder)
    os.kill(first.pid, signal.SIGSTOP)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        os.kill(first.pid, signal.SIGCONT)

    second = EmbeddedRedis.start(folder, tell)
    assert (second.pid, second.started) == (first.pid, False)
    assert "does not answer; waiting for it" in told[0]


def test_a_hung_server_is_ended_past_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a server that stays silent beyond the named limit is killed and started again (A8)."""
    monkeypatch.setattr(embedded, "PING_TIMEOUT_S", 0.2)
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.3)
    server, now = EmbeddedRedis.start(folder), [0.0]
    told: list[str] = []
    keeper = RedisKeeper(server, told.append, clock=lambda: now[0])
    os.kill(server.pid, signal.SIGSTOP)
    now[0] += embedded.SILENCE_MAX_S + 1
    assert keeper.look() is None
    assert keeper.server.pid != server.pid
    assert "was ended; starting it again" in told[0]


def test_restarts_are_counted_within_a_window(folder: Path) -> None:
    """A server that ends now and then over a long night is started again each time; one that ends
    at once is not (A8)."""
    now = [0.0]
    keeper = RedisKeeper(EmbeddedRedis.start(folder), lambda _: None, clock=lambda: now[0])

    def kill() -> None:
        os.kill(keeper.server.pid, signal.SIGKILL)
        os.waitpid(keeper.server.pid, 0)

    for _ in range(MAX_RESTARTS + 2):
        kill()
        now[0] += 0.6 * RESTART_WINDOW_S
        assert keeper.look() is None
    for _ in range(MAX_RESTARTS - 2):
        kill()
        assert keeper.look() is None
    kill()
    with pytest.raises(EmbeddedRedisFailed, match="within 10 min"):
        keeper.look()
