"""Where a job's rows go, as its spec says it: what is refused, and that no secret is stored or
shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_ledger.redaction import redact
from penstock_producer import JobFile, JobSpec, SpecError
from penstock_producer.errors import SinkUnfit
from penstock_producer.job.options import OPTIONS, SINK_FIELDS
from penstock_producer.job.sinks import MAX_CHARS, into_problem, into_url


@pytest.mark.parametrize(
    "into",
    [
        "sqlite:///mine.db",
        "sqlite:////data/mine.db",
        "postgresql://me@h/shop",
        "postgres://h/shop?sslmode=require",
        "postgresql+psycopg:///shop?host=/run/postgresql&passfile=/run/pass",
        "env:SHOP_URL",
    ],
)
def test_a_url_without_a_password_is_stored(into: str) -> None:
    """As it is, or by the name of a variable."""
    assert into_problem(into) is None
    assert JobSpec(into=into, into_table="t").to_json()["into"] == into


@pytest.mark.parametrize(
    ("into", "told"),
    [
        ("postgresql://me:hidden-1@h/shop", "holds a password"),
        ("postgresql://me:@h/shop", "holds a password"),
        ("postgresql://me:hid/den@h/shop", "is not shown"),
        ("postgresql://h/shop?password=hidden", "holds a password"),
        ("postgresql://h/shop?sslmode=require&sslpassword=hidden", "holds a password"),
        ("mysql://me:hidden@h/shop", "not the URL of a database"),
        ("postgresql://[hidden/shop", "cannot be read as a URL"),
        ("env:hidden word", "not the name of a variable"),
        ("env:", "not the name of a variable"),
        ("hidden", "not the URL of a database"),
        ("sqlite:///" + "x" * MAX_CHARS, "more than"),
    ],
)
def test_what_may_hold_a_secret_is_refused_unseen(into: str, told: str) -> None:
    """The message names the field and the ways that are left, and never the value."""
    with pytest.raises(SpecError) as caught:
        JobSpec(into=into, into_table="t")
    assert "/into: " in str(caught.value)
    assert told in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"into": "sqlite:///x"}, "/into_table: into is given without it"),
        ({"into_table": "t"}, "/into: into_table is given without it"),
        ({"into_id": "doc"}, "/into_id: there is no table"),
        ({"escape_formulas": True}, "/escape_formulas: formulas are escaped in CSV alone"),
        ({"escape_formulas": True, "output_format": "parquet"}, "/escape_formulas"),
        ({"output_format": "xls"}, "/output_format: 'xls' is refused"),
        ({"keep_columns": "a", "order": "done"}, "/keep_columns: a table in the order in which"),
    ],
)
def test_fields_that_do_not_belong_together_are_named(fields: dict[str, object], told: str) -> None:
    """Each with what to give, or to leave out."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_json(fields)
    assert told in str(caught.value)


def test_a_variable_holds_the_url_where_it_is_used() -> None:
    """Its password is hidden from then on; a variable that is not set, or holds something else, is
    named unseen."""
    variables = {"SHOP_URL": "postgresql://me:very-hidden@h/shop", "KEY": "hidden"}
    assert into_url("env:SHOP_URL", variables) == variables["SHOP_URL"]
    assert "very-hidden" not in redact("connection with very-hidden failed")
    assert into_url("sqlite:///x", {}) == "sqlite:///x"
    for name in ("KEY", "NONE"):
        with pytest.raises(SinkUnfit, match=f"variable {name} ") as caught:
            into_url(f"env:{name}", variables)
        assert "hidden" not in str(caught.value)


def test_a_job_spec_file_with_a_password_is_told_what_to_write(tmp_path: Path) -> None:
    """The line and the other way are named, not the value; without it the file says where results
    go."""
    path = tmp_path / "night.yaml"
    path.write_text("model: m\ninto: postgresql://me:hidden@h/shop\ninto_table: t\n")
    with pytest.raises(
        SpecError, match=r"night\.yaml line 2, field into: .*into: env:NAME"
    ) as caught:
        JobFile.load(path)
    assert "hidden" not in str(caught.value)
    path.write_text(
        "model: m\ninto: env:SHOP_URL\ninto_table: t\noutput_format: csv\nescape_formulas: true\n"
    )
    spec = JobFile.load(path).spec()
    assert (spec.into, spec.output_format, spec.escape_formulas) == ("env:SHOP_URL", "csv", True)


def test_where_results_go_is_left_out_where_the_command_writes_them_itself() -> None:
    """A job of `penstock run` is the same job with other sinks, so that a repeated command may name
    new ones."""
    spec = JobSpec(
        model="m",
        into="sqlite:///x",
        into_table="t",
        into_id="doc",
        output_format="csv",
        escape_formulas=True,
    )
    assert spec.without_sinks() == JobSpec(model="m")
    assert set(OPTIONS) >= SINK_FIELDS
