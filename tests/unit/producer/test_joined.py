"""A table that is the source's rows plus an answer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import cast

import orjson

from penstock_producer.tables.columns import Column, Kind, Row, Table, as_json, from_json
from penstock_producer.tables.with_source import added_columns, joined

SCHEMA = {
    "type": "object",
    "properties": {"category": {"type": "string"}, "Text": {"type": "integer"}},
}


def test_names_of_the_source_stay_and_those_of_answers_give_way() -> None:
    """The source's columns keep their names, whatever they are; an answer's column with one of
    them, upper and lower case alike, gets `answer_` in front. The id is the source's own."""
    outcomes = Table({"endpoint": "/v1/chat/completions", "response_schema": SCHEMA}).columns
    added = added_columns(["id", "STATUS", "category", "answer"], outcomes)
    names = {outcomes[one.at].name: one.column.name for one in added}
    assert "id" not in names
    assert names["status"] == "answer_STATUS".lower()
    assert names["category"] == "answer_category"
    assert names["text"] == "answer_answer"
    assert names["answer_Text"] == "answer_Text"
    assert names["cost_usd"] == "cost_usd"
    assert len({one.column.name.casefold() for one in added}) == len(added)


def test_rows_come_in_the_order_of_the_source_a_page_at_a_time() -> None:
    """Each row has what became of it behind it, or nulls while it has no outcome; outcomes are
    looked up for a page of rows, so that memory is flat."""
    asked: list[list[str]] = []
    known: dict[str, Row] = {str(n): [str(n), "succeeded", n * n] for n in (1, 2, 4, 5)}

    def look_up(ids: Sequence[str]) -> Mapping[str, Row]:
        asked.append(list(ids))
        return {one: known[one] for one in ids if one in known}

    columns = [Column("id", "text"), Column("status", "text"), Column("square", "integer")]
    rows = ((str(n), [f"row {n}"]) for n in range(1, 6))
    found = list(joined(rows, added_columns(["name"], columns), look_up, page=2))
    assert found == [
        ["row 1", "succeeded", 1],
        ["row 2", "succeeded", 4],
        ["row 3", None, None],
        ["row 4", "succeeded", 16],
        ["row 5", "succeeded", 25],
    ]
    assert asked == [["1", "2"], ["3", "4"], ["5"]]


def test_vectors_travel_as_json() -> None:
    """Numbers of float32 come back bit for bit, NaN among them; other values are as they are."""
    vector = struct.pack("<4f", 0.1, -2.5, float("nan"), 3e38)
    for value, kind in ((vector, "vector"), ([vector, vector], "vectors"), (None, "vector")):
        sent = json.loads(orjson.dumps(as_json(value)))
        assert from_json(sent, cast(Kind, kind)) == value
    assert from_json(as_json("text"), "text") == "text"
