"""`penstock migrate` in processes of its own, against a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from forked import Penstock
from servers import Postgres, free_port
from sqlalchemy import create_engine, text

from penstock_ledger import HEAD, open_database


class Migration:
    """One run of the command."""

    def __init__(self, database_url: str, folder: Path, *flags: str) -> None:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        self.popen = Penstock(
            ["migrate", *flags],
            env=kept | {"PENSTOCK_DATABASE_URL": database_url},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=60)
        return self.popen.returncode, out, err


@pytest.fixture
def late_database(postgres_server: Postgres, postgres_url: str) -> tuple[str, str]:
    """The URL of a database that is not there yet, and the name to create it by."""
    name = "late_" + postgres_url.partition("?")[0].rpartition("/")[2]
    return postgres_server.handle.get_uri(database=name), name


def test_several_at_once_bring_one_schema(postgres_url: str, tmp_path: Path) -> None:
    """Each of three that start together ends with 0 and says what it found; a later one finds
    nothing to do."""
    together = [Migration(postgres_url, tmp_path) for _ in range(3)]
    assert [migration.end()[0] for migration in together] == [0, 0, 0]
    status, out, _ = Migration(postgres_url, tmp_path).end()
    assert (status, f"has schema {HEAD}: it is up to date" in out) == (0, True)
    database = open_database(postgres_url)
    assert database.revision() == HEAD
    database.close()


def test_a_database_that_comes_late_is_waited_for(
    late_database: tuple[str, str], postgres_url: str, tmp_path: Path
) -> None:
    """It says once what it waits for, and migrates as soon as the database answers."""
    url, name = late_database
    migration = Migration(url, tmp_path)
    assert migration.popen.stderr is not None
    assert "does not answer yet" in migration.popen.stderr.readline()
    admin = create_engine(
        postgres_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    status, out, _ = migration.end()
    assert (status, "was brought from nothing" in out) == (0, True)


def test_a_database_that_stays_away_is_named_without_its_password(tmp_path: Path) -> None:
    """After the limit: exit status 1, the address, the driver's reason and the setting to
    correct."""
    url = f"postgresql://fleet:hunter2@127.0.0.1:{free_port()}/x"
    status, _, err = Migration(url, tmp_path, "--wait", "0").end()
    assert status == 1
    assert "hunter2" not in err
    assert "Connection refused" in err
    assert "PENSTOCK_DATABASE_URL" in err
