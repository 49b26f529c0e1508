"""How a database is named as a source: what is refused, what is kept, and that no password is ever
shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_ledger.redaction import redact
from penstock_producer.errors import SourceError, SourceForbidden, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.source_formats import in_folder, is_database
from penstock_producer.sources import open_source, refuse_unreadable
from penstock_producer.sources.databases.address import address_of, whole
from penstock_producer.sources.open import unchanged

SPEC = JobSpec(prompt="{text}", model="m", table="docs")
PASSWORD = "vEry-secret-42"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("sqlite:///a.db", True),
        ("postgresql://h/d", True),
        ("postgresql+psycopg://h/d", True),
        ("mysql://h/d", True),
        ("env:DB", True),
        ("s3://bucket/a", False),
        ("file:///a", False),
        ("a.db", False),
        ("sqlite.jsonl", False),
    ],
)
def test_databases_are_told_by_their_names(name: str, is_one: bool) -> None:
    """URLs of databases, and variables that hold one; files and objects are none."""
    assert is_database(name) is is_one


def test_a_file_of_a_database_is_named_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name means the same in every working folder, and in a job spec file it counts from the
    folder of that file."""
    monkeypatch.chdir(tmp_path)
    assert (
        whole("sqlite:///in.db")
        == f"sqlite:///{tmp_path}/in.db"
        == in_folder("sqlite:///in.db", "")
    )
    assert in_folder("sqlite:////abs/in.db", "/else") == "sqlite:////abs/in.db"
    assert (
        whole("duckdb:///in.db")
        == f"duckdb:///{tmp_path}/in.db"
        == in_folder("duckdb:///in.db", "")
    )
    assert in_folder("duckdb:///md:shop", "/else") == "duckdb:///md:shop"
    assert in_folder("env:DB", "/else") == "env:DB"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{PASSWORD}@host/db",
        f"postgresql://host/db?password={PASSWORD}",
        f"postgresql+psycopg://me:{PASSWORD}@host/db",
        f"mysql://me:{PASSWORD}@host/db",
        f"postgresql://me:{PASSWORD}@@host:x/db",
    ],
)
def test_a_password_in_the_source_is_refused_and_not_shown(url: str) -> None:
    """It would be stored with the job; the message says where to put it instead, without it."""
    for ask in (lambda: open_source(url, SPEC), lambda: refuse_unreadable(url), lambda: whole(url)):
        with pytest.raises(SourceError) as raised:
            ask()
        assert PASSWORD not in str(raised.value)
        assert raised.value.code in ("password_in_url", "invalid_url")
    assert PASSWORD not in redact(f"could not connect with {PASSWORD}")


def test_a_variable_holds_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the variable's name is kept and shown, and its value is hidden everywhere from then
    on."""
    monkeypatch.setenv("WAREHOUSE", f"postgresql://me:{PASSWORD}@host/db")
    address = address_of("env:WAREHOUSE")
    assert (address.name, address.url.password) == ("env:WAREHOUSE", PASSWORD)
    assert whole("env:WAREHOUSE") == "env:WAREHOUSE"
    assert PASSWORD not in redact(str(address.url.render_as_string(hide_password=False)))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("env:", "", "names no variable"),
        ("env:A B", "", "names no variable"),
        ("env:NOT_SET", "", "is not set"),
        ("env:SET", PASSWORD, "env:SET is not the URL of a database"),
        ("env:SET", "redis://h", "postgresql:// and sqlite://"),
    ],
)
def test_a_variable_that_holds_no_url_is_refused(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name: what it holds may be a secret of something else."""
    monkeypatch.setenv("SET", value or "x")
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(SourceError, match=words) as raised:
        address_of(name)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///a.db?mode=rw", "names no file"),
        ("duckdb:///:memory:", "names no file of DuckDB"),
        ("duckdb://", "names no file of DuckDB"),
        ("sqlite+pysqlcipher:///a.db", "write sqlite://"),
        ("postgresql+psycopg2://h/d", "write postgresql://"),
        ("sqlite:///a\nb", "cannot be a path"),
    ],
)
def test_other_databases_are_refused_with_what_to_do(url: str, words: str) -> None:
    """What cannot be read is refused before anything is connected."""
    with pytest.raises(SourceError, match=words):
        open_source(url, SPEC)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mssql://reader@db/shop", "needs a driver that is not installed here: pip install pyodbc"),
        ("mssql+pymssql://reader@db/shop", "pip install pymssql"),
        ("snowflake://reader@account/shop", "pip install snowflake-sqlalchemy"),
        ("mysql+mysqlconnector://reader@db/shop", "pip install mysql-connector-python"),
        ("vertica://reader@db/shop", "install the SQLAlchemy dialect of vertica"),
    ],
)
def test_a_database_says_which_package_it_needs(url: str, words: str) -> None:
    """Before anything is connected, and a job that was accepted elsewhere waits for it."""
    with pytest.raises(SourceUnavailable, match=words):
        open_source(url, SPEC)


def test_what_to_read_has_to_be_said(tmp_path: Path) -> None:
    """A database needs a table or a query, neither fits a file, and a format fits no table."""
    plain = JobSpec(prompt="{text}", model="m")
    with pytest.raises(SourceError, match="say what to read of it: table=NAME"):
        open_source("sqlite:///a.db", plain)
    with pytest.raises(SourceError, match="is no database, and table and query read one"):
        open_source(tmp_path / "in.jsonl", SPEC)
    with pytest.raises(SourceError, match="leave format and encoding out"):
        open_source("sqlite:///a.db", SPEC.model_copy(update={"format": "csv"}))
    with pytest.raises(SourceError, match="is no SELECT"):
        open_source("sqlite:///a.db", plain.model_copy(update={"query": " ; "}))


@pytest.mark.parametrize(
    "name", ["sqlite:////data/in.db", "postgresql://me@host/db", "env:PENSTOCK_DATABASE_URL"]
)
def test_remote_doors_read_no_database(name: str) -> None:
    """A stranger must not choose what this process connects to, nor read its variables."""
    with pytest.raises(SourceForbidden, match="a database"):
        open_source(name, SPEC, remote=True)


def test_a_table_is_the_same_source_until_its_job_has_ended() -> None:
    """A job that is resumed goes on with its own rows; after its end the rows are looked at
    again."""
    pin = {"kind": "table", "uri": "sqlite:////data/in.db"}
    assert unchanged(pin, "sqlite:////data/in.db")
    assert not unchanged(pin, "sqlite:////data/in.db", ended=True)
    assert not unchanged(pin, "sqlite:////data/other.db")
    assert not unchanged(pin, "/data/in.db")
    assert not unchanged({"kind": "file", "uri": "/data/in.db"}, "sqlite:////data/in.db")


def test_a_variable_of_the_url_that_is_missing_pauses_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be set in the next process, so nothing fails for good."""
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(SourceUnavailable):
        address_of("env:NOT_SET")
