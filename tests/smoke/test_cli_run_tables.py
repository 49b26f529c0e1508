"""`penstock run` that ends in tables: a subprocess, a simulated provider, real files and a real
database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from machine import Machine, simulator


def test_a_run_ends_in_a_parquet_file_and_in_a_table(tmp_path: Path) -> None:
    """Every document has a row in both, dead letters included; the same command again adds
    nothing."""
    parquet = pytest.importorskip("pyarrow.parquet")
    machine = Machine(tmp_path)
    machine.source(150, bad='{"id": "no-text"}\n')
    with simulator() as provider:
        flags = (
            "--output-format",
            "parquet",
            "--into",
            f"sqlite:///{tmp_path}/mine.db",
            "--into-table",
            "summaries",
        )
        status, told = machine.penstock(*machine.run_arguments(provider, *flags))
        assert status == 3, told + machine.logs()
        again, _ = machine.penstock(*machine.run_arguments(provider, *flags))
        assert again == 3
    rows = parquet.read_table(tmp_path / "out" / "output.parquet").to_pylist()
    assert {row["id"] for row in rows} == {f"doc-{n}" for n in range(150)} | {"no-text"}
    assert {row["error_code"] for row in rows} == {None, "missing_field"}
    with sqlite3.connect(tmp_path / "mine.db") as mine:
        assert mine.execute("SELECT count(*), count(text) FROM summaries").fetchone() == (151, 150)
    assert "151 new" in told


def test_what_would_fail_at_the_end_is_refused_at_the_start(tmp_path: Path) -> None:
    """A table that does not fit, flags that contradict and an unknown form end the command before a
    call is paid."""
    machine = Machine(tmp_path)
    machine.source(3)
    with sqlite3.connect(tmp_path / "mine.db") as mine:
        mine.execute("CREATE TABLE summaries (id TEXT, text TEXT)")
    into = ("--into", f"sqlite:///{tmp_path}/mine.db")
    with simulator() as provider:
        for flags, says in (
            ((*into, "--into-table", "summaries"), "unique constraint"),
            (into, "give both"),
            (("--output-format", "xls"), "'parquet' or 'xlsx'"),
            (("--keep-columns", "text", "--order", "done"), "has the answers alone"),
            (("--into", "postgresql://me:hidden@h/shop", "--into-table", "t"), "write env:NAME"),
        ):
            status, told = machine.penstock(*machine.run_arguments(provider, *flags))
            assert (status, says in " ".join(told.split())) == (2, True), told
            assert "hidden" not in told
        assert provider.stats()["requests"] == 0
