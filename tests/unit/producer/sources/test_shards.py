"""Shards of a source: where it is split, what each of them reads, and how many there are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_ledger.model import Shard
from penstock_producer import JobSpec, SpecError
from penstock_producer.accepting.survey import POINTS_KEPT, SplitPoints, survey
from penstock_producer.feed.feeder_plan import (
    BYTES_PER_FEEDER,
    MOST_BY_ITSELF,
    ROWS_PER_FEEDER,
    is_worth_telling,
    plan_feeders,
)
from penstock_producer.job.spec import MAX_FEEDERS
from penstock_producer.sources import open_source
from penstock_producer.sources.of_feed import Until

SPEC = JobSpec(prompt="{text}", model="m", max_bad_rows=50)
LINES = [json.dumps({"id": f"d{n}", "text": f"text {n}"}) for n in range(100)]
WITH_FAULTS = [*LINES[:7], "", "oops", *LINES[5:60], "{}", "", "", *LINES[60:], ""]


def jsonl(folder: Path) -> str:
    path = folder / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(WITH_FAULTS).encode())
    return str(path)


def csv(folder: Path) -> str:
    path = folder / "in.csv"
    path.write_text(
        "id,text\n"
        + "".join(f'd{n},"two\n\nlines ""{n}"""\n' for n in range(90))
        + "ragged,x,y\n\nz,end\n"
    )
    return str(path)


def parquet(folder: Path) -> str:
    path = folder / "in.parquet"
    pq.write_table(
        pa.table({"id": list(range(120)), "text": [f"t{n}" for n in range(120)]}),
        path,
        row_group_size=25,
    )
    return str(path)


def packed(folder: Path) -> str:
    path = folder / "in.jsonl.gz"
    parts = [
        "".join(f"{line}\n" for line in LINES[start : start + 20]) for start in range(0, 100, 20)
    ]
    path.write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    return str(path)


def several(folder: Path) -> str:
    (folder / "data").mkdir()
    (folder / "data/a.jsonl").write_text("\n".join(WITH_FAULTS[:40]))
    (folder / "data/b.csv").write_text("id,text\n" + "".join(f"b{n},x\n" for n in range(10)))
    (folder / "data/c.jsonl").write_text("\n".join(WITH_FAULTS[40:]))
    return f"{folder}/data/"


@pytest.mark.parametrize("write", [jsonl, csv, parquet, packed, several])
@pytest.mark.parametrize("number", [2, 3, 8])
def test_shards_read_every_row_once_and_in_order(
    tmp_path: Path, write: Callable[[Path], str], number: int
) -> None:
    """All shards one after the other are the whole source, with its lines and positions; each goes
    on after any of its rows."""
    found = survey(open_source(write(tmp_path), SPEC), SPEC)
    pin, stored = json.loads(json.dumps([found.pin, found.split_points.split(found.total, number)]))
    shards = [Shard(*shard) for shard in stored]
    assert len(shards) == number
    source = open_source(pin, SPEC)
    whole, read = list(source.documents({})), []
    for starts_at, ends_at in shards:
        part = source if ends_at is None else Until(source, ends_at)
        rows = list(part.documents(starts_at))
        assert abs(len(rows) - len(whole) / number) <= 1
        for index, row in enumerate(rows):
            assert list(part.documents(row.cursor)) == rows[index + 1 :]
        read += rows
    assert read == whole


@settings(max_examples=25)
@given(rows=st.integers(1, 6_000), number=st.integers(1, MAX_FEEDERS))
def test_split_points_are_few_and_even(rows: int, number: int) -> None:
    """Whatever the number of rows, bounded memory splits it into parts that differ by a few rows in
    a hundred."""
    points, wanted = SplitPoints(), 1
    for row in range(1, rows + 1):
        if row == wanted:
            wanted = points.note(row, {"row": row})
            assert (wanted > row, len(points._kept) <= POINTS_KEPT) == (True, True)
    shards = points.split(rows, number)
    assert len(shards) == (0 if min(rows, number) == 1 else min(rows, number))
    starts = [int(shard.starts_at.get("row", 0)) for shard in shards]
    ends = [rows if shard.ends_at is None else int(shard.ends_at["row"]) for shard in shards]
    assert starts[1:] == ends[:-1]
    assert all(
        abs(end - start - rows / number) <= 1 + rows * 4 / POINTS_KEPT
        for start, end in zip(starts, ends, strict=True)
    )


@pytest.mark.parametrize(
    ("spec", "rows", "size", "feeders", "why"),
    [
        ({}, ROWS_PER_FEEDER - 1, 0, 1, "one for each 1,000,000 documents"),
        ({}, 2 * ROWS_PER_FEEDER, 0, 2, "one for each 1,000,000 documents"),
        ({}, 1_000, 3 * BYTES_PER_FEEDER, 3, "GiB of requests"),
        ({}, 100 * ROWS_PER_FEEDER, 0, MOST_BY_ITSELF, "at most 4"),
        ({"feeders": 5}, 100, 0, 5, "as the job says"),
        ({"feeders": 5}, 3, 0, 3, "as the job says"),
        ({"feeders": 5, "budget_usd": 1.0}, 100, 0, 1, "budget"),
        ({"feeders": 5, "prefix_order": True, "prompt": "{text}"}, 100, 0, 1, "prefix order"),
        ({"lane": "gpu", "prompt": "{text}"}, 9 * ROWS_PER_FEEDER, 0, 1, "prefix order"),
    ],
)
def test_the_plan_says_how_many_and_why(
    spec: dict[str, Any], rows: int, size: int, feeders: int, why: str
) -> None:
    """By size where the job does not say, never more than named, and one where a job needs one."""
    plan = plan_feeders(JobSpec(**spec), rows, size, {"kind": "file"}, one_machine=False)
    assert plan.feeders == feeders
    assert why in str(plan)


def test_a_sqlite_file_is_split_only_when_asked(tmp_path: Path) -> None:
    """On one machine one process leads a job; a person who wants more says so."""
    pin = {"kind": "file"}
    assert plan_feeders(JobSpec(), 10**7, 0, pin, one_machine=True).feeders == 1
    assert plan_feeders(JobSpec(feeders=3), 10**7, 0, pin, one_machine=True).feeders == 3
    assert is_worth_telling(
        JobSpec(), plan_feeders(JobSpec(), 10**7, 0, pin, one_machine=True), 10**7
    )
    assert not is_worth_telling(
        JobSpec(), plan_feeders(JobSpec(), 10, 0, pin, one_machine=True), 10
    )


def test_a_compressed_file_has_no_more_feeders_than_places_to_begin() -> None:
    """One gzip member can be read from its start only: more feeders would unpack the same bytes
    again and again."""
    one, three = (
        {"kind": "file", "packed": "gzip", "members": [[0, 0]] * number} for number in (1, 3)
    )
    told = plan_feeders(JobSpec(feeders=8), 10**7, 0, one, one_machine=False)
    assert (told.feeders, "bgzip" in told.why) == (1, True)
    for pin, feeders in (
        (three, 3),
        ({"kind": "files", "files": [one, three]}, 4),
        ({"kind": "files", "files": [one, {"kind": "file"}]}, 8),
    ):
        assert plan_feeders(JobSpec(feeders=8), 10**7, 0, pin, one_machine=False).feeders == feeders


@pytest.mark.parametrize("feeders", [0, -1, MAX_FEEDERS + 1, True, "4"])
def test_an_impossible_number_of_feeders_is_refused(feeders: Any) -> None:
    """The limit is named, and nothing is guessed."""
    with pytest.raises(SpecError, match="/feeders"):
        JobSpec(feeders=feeders)
