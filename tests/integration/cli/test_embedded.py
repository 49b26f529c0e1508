"""The private Redis of one-machine mode, with real servers."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import RedisServer

from penstock_cli import redis_server as embedded
from penstock_cli import server_versions as redis_binary
from penstock_cli.errors import ForeignRedis, NoRedisServer
from penstock_cli.redis_server import EmbeddedRedis


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A redis folder with a short path; a server that a test left in it is stopped."""
    path = tmp_path / "redis"
    yield path
    left = EmbeddedRedis.find(path)
    if left is not None:
        left.stop()


def test_starts_private_durable_and_never_evicting(folder: Path) -> None:
    """The server keeps an AOF, never evicts, listens on no port, and only its owner can reach it or
    read its files."""
    server = EmbeddedRedis.start(folder)
    settings = server.client.config_get("*")
    assert server.started
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["port"] == "0"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_is_not_in_our_session(folder: Path) -> None:
    """Ctrl-C in the terminal does not reach the server, because it has a session of its own."""
    server = EmbeddedRedis.start(folder)
    assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_a_running_server_is_used_again(folder: Path) -> None:
    """A second start finds the same process with the same data, even when the pidfile was lost."""
    first = EmbeddedRedis.start(folder)
    first.client.set("kept", "yes")
    second = EmbeddedRedis.start(folder)
    assert (second.pid, second.started) == (first.pid, False)
    (folder / "server.json").unlink()
    third = EmbeddedRedis.start(folder)
    assert (third.pid, third.client.get("kept")) == (first.pid, "yes")


def test_a_clean_stop_keeps_the_data_and_leaves_no_process(folder: Path) -> None:
    """What was written just before the stop is there after the next start."""
    server = EmbeddedRedis.start(folder)
    server.client.set("last", "word")
    server.stop()
    assert EmbeddedRedis.find(folder) is None
    assert not Path(f"/proc/{server.pid}/cwd").exists()
    again = EmbeddedRedis.start(folder)
    assert (again.started, again.client.get("last")) == (True, "word")


def test_a_stale_pidfile_is_no_obstacle(folder: Path) -> None:
    """After kill -9 of the server, and with its pid now naming another process, a fresh one
    starts."""
    first = EmbeddedRedis.start(folder)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    (folder / "server.json").write_text(
        f'{{"socket": "{folder}/redis.sock", "port": 0, "password": null, "pid": 1}}'
    )
    again = EmbeddedRedis.start(folder)
    assert again.started
    assert again.pid != first.pid


def test_a_server_without_its_socket_file_is_ended_first(folder: Path) -> None:
    """An embedded server that can no longer be reached is ended before another one opens the same
    AOF."""
    first = EmbeddedRedis.start(folder)
    first.client.set("kept", "yes")
    (folder / "redis.sock").unlink()
    second = EmbeddedRedis.start(folder)
    assert second.pid != first.pid
    assert not Path(f"/proc/{first.pid}/cwd").exists()
    assert second.client.get("kept") == "yes"


def test_a_foreign_redis_on_our_socket_is_refused(folder: Path, tmp_path: Path) -> None:
    """A Redis that works in another folder is neither used nor stopped; the message names both
    folders."""
    folder.mkdir()
    elsewhere = tmp_path / "elsewhere"
    foreign = RedisServer.start(elsewhere, settings=("--unixsocket", str(folder / "redis.sock")))
    try:
        with pytest.raises(ForeignRedis, match=str(elsewhere)):
            EmbeddedRedis.start(folder)
        assert foreign.client().ping()
    finally:
        foreign.stop()


def test_a_silent_process_on_our_socket_does_not_hang_us(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that accepts and never answers counts as gone."""
    monkeypatch.setattr(embedded, "ANSWER_TIMEOUT_S", 0.2)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "redis.sock"))
        silent.listen()
        assert EmbeddedRedis.start(folder).started


def test_a_talker_of_another_protocol_is_refused(folder: Path) -> None:
    """A server that speaks, but not Redis, is named as foreign."""
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "redis.sock"))
        server.listen()

        def greet() -> None:
            peer, _ = server.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.recv(1)

        talker = threading.Thread(target=greet, daemon=True)
        talker.start()
        with pytest.raises(ForeignRedis):
            EmbeddedRedis.start(folder)


def test_a_long_path_gets_a_port_and_a_password(tmp_path: Path) -> None:
    """Where the path does not fit a socket address, the server listens on loopback and asks for a
    password."""
    deep = tmp_path / ("d" * 90) / "redis"
    server = EmbeddedRedis.start(deep)
    try:
        assert server.endpoint.socket is None
        assert server.endpoint.password is not None
        assert len(server.endpoint.password) == 48
        assert EmbeddedRedis.start(deep).pid == server.pid
        assert server.endpoint.password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        with pytest.raises(Exception, match="authenticated"):
            RedisServer(deep, server.endpoint.port, False).client().ping()
    finally:
        server.stop()


def test_a_path_with_quotes_and_spaces_works(tmp_path: Path) -> None:
    """The configuration file and the URLs survive unusual folder names."""
    import redis

    server = EmbeddedRedis.start(tmp_path / 'a "b" \\ ?c#%')
    try:
        assert redis.Redis.from_url(server.endpoint.redis_url).ping()
    finally:
        server.stop()


def test_no_server_names_the_fix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable redis-server the message says what to install."""
    monkeypatch.setattr(redis_binary, "_candidates", lambda: ["/bin/true"])
    with pytest.raises(NoRedisServer, match=r"penstock\[embedded\].*apt install redis-server"):
        EmbeddedRedis.start(folder)
