"""The examples of docs/uses/, each run once as its reader would, on the real texts that it
brings."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import forked
import psycopg
import pytest
from forked import Penstock
from machine import Machine, Simulator, eventually, simulator, words_of
from pages import commands_of, missing
from pyarrow import parquet
from servers import Postgres

from penstock_producer import Producer

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = 36
# by the program: what its page shows of its output
PRINTED = {
    Path(one.command.split()[1]).stem: [
        re.sub(r"\bexample-\w+/", "out/", line) for line in one.printed
    ]
    for page in sorted((EXAMPLES.parent / "docs/uses").glob("*.md"))
    for one in commands_of(f"docs/uses/{page.name}")
    if one.command.startswith("python examples/")
}
TIME_S = 90.0
Row = dict[str, str]


@pytest.fixture(scope="module")
def provider() -> Iterator[Simulator]:
    with simulator() as one:
        yield one


@pytest.fixture(scope="module")
def door(
    tmp_path_factory: pytest.TempPathFactory, provider: Simulator
) -> Iterator[tuple[str, str]]:
    """A `penstock serve` that runs already: its address and its database."""
    machine = Machine(tmp_path_factory.mktemp("serving"))
    with serving(machine, provider) as url:
        yield url, f"sqlite:///{machine.folder / 'state' / 'penstock.db'}"
    assert machine.leftovers() == []


@contextmanager
def serving(machine: Machine, provider: Simulator) -> Iterator[str]:
    process = machine.start(
        "serve", "--port", "0", "--state", "state", "--base-url", provider.url, "--no-progress"
    )
    assert process.stdout is not None
    try:
        ready = next((line for line in process.stdout if line.startswith("serving on ")), "")
        assert ready, "`penstock serve` did not start"
        yield ready.split()[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIME_S)


def run(name: str, folder: Path, *flags: str, again: bool = False, **environment: str) -> str:
    """The example's output: it has ended with status 0, left no process behind, and printed what
    its page shows, unless it does it ``again``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    ended = forked.run(
        ["--out", "out", "--docs", str(DOCS), *flags],
        TIME_S,
        program=EXAMPLES / f"{name}.py",
        cwd=folder,
        env=clean | environment,
        stderr=subprocess.STDOUT,
    )
    assert ended.returncode == 0, ended.stdout
    eventually(lambda: not Machine(folder).leftovers())
    assert again or missing(PRINTED[name], ended.stdout) == [], ended.stdout
    return ended.stdout


def jobs_in(shown: str) -> list[str]:
    """The keys of the jobs that an example says have completed."""
    return re.findall(r"^(\S+): completed, ", shown, re.MULTILINE)


def table(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tickets_have_a_category_an_urgency_and_a_summary(
    tmp_path: Path, provider: Simulator
) -> None:
    """Every ticket has one row, whose fields are those that the schema allows."""
    shown = run("tickets", tmp_path, "--base-url", provider.url)
    rows = table(tmp_path / "out/answers/output.csv")
    asked = {row["ticket_id"]: row["text"] for row in table(tmp_path / "out/tickets.csv")}
    assert len(asked) == DOCS
    assert sorted(row["ticket_id"] for row in rows) == sorted(asked)
    assert {row["status"] for row in rows} == {"succeeded"}
    assert {row["category"] for row in rows} <= {"bug", "wish", "question", "documentation"}
    assert {row["urgency"] for row in rows} <= {"low", "normal", "high"}
    assert all(
        row["summary"].rstrip("…") in " ".join(asked[row["ticket_id"]].split()) for row in rows
    )
    assert "out/answers/output.csv" in shown


def test_descriptions_are_joined_to_their_products(tmp_path: Path, provider: Simulator) -> None:
    """Every product of the catalogue is in the shop's table once, with its own columns and what was
    written."""
    run("products", tmp_path, "--base-url", provider.url)
    shop = parquet.read_table(tmp_path / "out/shop.parquet").to_pylist()
    catalogue = table(tmp_path / "out/catalogue.csv")
    assert [(row["sku"], row["name"], row["text"]) for row in shop] == sorted(
        (row["sku"], row["name"], row["text"]) for row in catalogue
    )
    assert len(shop) == DOCS
    assert all(row["status"] == "succeeded" and row["title"] and row["description"] for row in shop)
    assert {row["shelf"] for row in shop} <= {
        "compute",
        "storage",
        "data",
        "network",
        "security",
        "other",
    }


def test_models_are_scored_on_the_same_cases_and_start_every_night(tmp_path: Path) -> None:
    """Without a flag: its own provider and fleet start and end.

    The scores are those of the answers in the ledger."""
    shown = run("evals", tmp_path)
    scores: dict[str, float] = json.loads((tmp_path / "out/scores.json").read_text())
    cases = [json.loads(line) for line in (tmp_path / "out/cases.jsonl").read_text().splitlines()]
    right = {case["id"]: case["kind"] for case in cases}
    with Producer(database_url=f"sqlite:///{tmp_path}/out/serving/penstock.db") as producer:
        assert sorted(one.name for one in producer.schedules.list()) == [
            "eval-sim-large",
            "eval-sim-small",
        ]
        for key in jobs_in(shown):
            said = {
                one.key.doc_id: json.loads(one.json()["choices"][0]["message"]["content"])["kind"]
                for one in producer.results(key)
            }
            assert said.keys() == right.keys()
            passed = sum(said[case] == right[case] for case in right)
            assert scores[str(producer.status(key).job.spec["model"])] == passed / DOCS
    assert len(scores) == 2
    assert "sim-small -> sim-large: " in shown


def test_people_get_the_texts_on_which_two_models_differ(
    tmp_path: Path, door: tuple[str, str]
) -> None:
    """Each text is either labelled or in the table for people, who see both labels and have a
    column for theirs."""
    shown = run("labels", tmp_path, "--door", door[0])
    agreed, differing = (
        table(tmp_path / "out/labels.csv"),
        table(tmp_path / "out/disagreements.csv"),
    )
    assert len({row["id"] for row in [*agreed, *differing]}) == len(agreed) + len(differing) == DOCS
    assert agreed
    assert all(
        row["sim-small"] != row["sim-large"] and row["label"] == "" and row["text"]
        for row in differing
    )
    assert differing
    topics = {"files", "network", "text", "numbers", "time", "concurrency", "other"}
    assert {row["label"] for row in agreed} | {row["sim-large"] for row in differing} <= topics
    assert f"{len(agreed)} of {DOCS} alike" in shown


def test_texts_of_a_table_get_their_vectors(
    tmp_path: Path, provider: Simulator, postgres_server: Postgres
) -> None:
    """Each row has its vector, of pgvector with an index; a second run pays for nothing, and reads
    arrays as well."""
    url = postgres_server.new_database()
    with closing(psycopg.connect(url, autocommit=True)) as database:
        if not database.execute(
            "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
        ).fetchone():
            pytest.skip("this PostgreSQL comes without pgvector")
        before = provider.stats()["requests"]
        shown = run("embeddings", tmp_path, "--base-url", provider.url, VECTORS_URL=url)
        rows = database.execute("SELECT id, embedding::real[] FROM texts").fetchall()
        assert len(rows) == DOCS
        assert all(
            len(vector) == 256 and abs(sum(part * part for part in vector) - 1) < 1e-3
            for _, vector in rows
        )
        assert f"{DOCS} texts have a vector (pgvector)" in shown
        assert database.execute(
            "SELECT 1 FROM pg_indexes WHERE indexname = 'texts_nearest'"
        ).fetchone()
        database.execute("DROP INDEX texts_nearest")
        database.execute("ALTER TABLE texts ALTER embedding TYPE real[] USING embedding::real[]")
        flags = ("--base-url", provider.url)
        again = run("embeddings", tmp_path, *flags, again=True, VECTORS_URL=url)
    assert f"{DOCS} texts have a vector (an array)" in again
    assert len(nearest_in(shown)) == 3
    assert nearest_in(again) == nearest_in(shown)
    assert provider.stats()["requests"] == before + DOCS + 2, "the questions alone were asked twice"


def nearest_in(shown: str) -> list[str]:
    """The last lines: how alike, and which text."""
    return re.findall(r"^  (\d\.\d\d  \S+)$", shown, re.MULTILINE)


def test_long_documents_become_summaries_of_their_parts(
    tmp_path: Path, door: tuple[str, str]
) -> None:
    """Every part and every document has one outcome, and each summary says of how many parts it was
    made."""
    shown = run("summaries", tmp_path, "--docs", "4", PENSTOCK_DATABASE_URL=door[1])
    summaries = [
        json.loads(line) for line in (tmp_path / "out/summaries.jsonl").read_text().splitlines()
    ]
    assert len({one["id"] for one in summaries}) == len(summaries) == 4
    assert all(one["summary"] and one["parts"] >= one["chars"] // 6_000 > 1 for one in summaries)
    with Producer(database_url=door[1]) as producer:
        counts = {key.split("-")[1]: producer.status(key).counts for key in jobs_in(shown)}
    assert (counts["documents"].succeeded, counts["documents"].dead) == (4, 0)
    assert (counts["parts"].succeeded, counts["parts"].dead) == (
        sum(one["parts"] for one in summaries),
        0,
    )


def test_a_table_becomes_another_and_new_rows_alone_are_paid(
    tmp_path: Path, provider: Simulator
) -> None:
    """Each row stands in the table of labels once, with its own columns; a second night asks for
    what has come since, and the same program again for nothing."""
    before = provider.stats()["requests"]
    shown = run("tables", tmp_path, "--base-url", provider.url)
    assert re.findall(r"^(\d+) rows are new behind (\d+)$", shown, re.MULTILINE) == [
        (str(DOCS - 5), "0"),
        ("5", str(DOCS - 5)),
    ]
    assert f"nothing is new behind {DOCS}" in shown
    with closing(sqlite3.connect(tmp_path / "out/shop.db")) as shop:
        asked = shop.execute("SELECT id, place, text FROM tickets ORDER BY id").fetchall()
        labelled = shop.execute("SELECT id, place, text FROM labels ORDER BY id").fetchall()
        answered = shop.execute("SELECT count(*) FROM labels WHERE answer IS NOT NULL").fetchone()
    assert labelled == asked
    assert answered == (DOCS,)
    run("tables", tmp_path, "--base-url", provider.url, again=True)
    assert provider.stats()["requests"] == before + DOCS


def test_a_demo_that_is_killed_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    """`kill -9` of it ends its provider and its run with it; the run's own end is said; the same
    command goes on each time, and finishes."""
    machine = Machine(tmp_path)
    words, program = ["--docs", "200"], EXAMPLES / "demo.py"
    for whole in (True, False):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        demo = Penstock(words, program=program, cwd=tmp_path, text=True, **streams)
        assert demo.stdout is not None
        for line in demo.stdout:
            if "the first calls are under way" in line:
                break
        run = next(pid for pid in children(demo.pid) if " run " in words_of(pid))
        os.kill(demo.pid if whole else run, signal.SIGKILL)
        said, _ = demo.communicate(timeout=TIME_S)
        assert whole or "The run was ended by SIGKILL" in said
        # a killed run leaves its Redis, idle, to the one that goes on
        eventually(lambda: not machine.at_work())
    done = forked.run(words, TIME_S, program=program, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 200 documents" in done.stdout
    assert machine.leftovers() == []


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
