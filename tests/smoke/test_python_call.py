"""`penstock.run` as a notebook or a script calls it: real workers, a real queue, a simulated
provider."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from forked import Penstock
from machine import Machine, Simulator, eventually, simulator
from pydantic import BaseModel
from servers import Postgres

import penstock

pytestmark = pytest.mark.usefixtures("forked_starts")
PROMPT = "Categorise: {text}"


class Ticket(BaseModel):
    """What an answer is asked to be."""

    category: str
    urgent: bool
    score: float | None = None


@pytest.fixture(scope="module")
def provider() -> Iterator[Simulator]:
    with simulator("--usd-per-mtok-in", "1", "--usd-per-mtok-out", "2") as found:
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of a test, below which its jobs are kept."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(provider: Simulator, **more: Any) -> dict[str, Any]:
    prices = {"usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0}
    return {
        "prompt": PROMPT,
        "model": "sim",
        "base_url": provider.url,
        "workers": 1,
        **prices,
    } | more


def test_a_frame_of_pandas_comes_back_with_answers(provider: Simulator, folder: Path) -> None:
    """Rows, order, index, names and types are those that went in; the answers stand behind them,
    and merge by the frame's own id. An empty cell and a null cost nothing."""
    frame = pd.DataFrame(
        {
            "ticket": [7, 3, 9, 4, 5],
            "text": ["late", "broken", None, "lost", ""],
            "when": pd.to_datetime(["2026-01-01"] * 5),
            "shop": pd.Categorical(["x", "y", "x", "y", "x"]),
        },
        index=pd.Index([10, 20, 30, 40, 50], name="key"),
    )
    before = provider.stats()["requests"]
    answers = penstock.run(frame, **options(provider, response_format=Ticket))
    got = answers.to_pandas()
    pd.testing.assert_frame_equal(got[list(frame.columns)], frame)
    assert list(got.columns[4:]) == [
        "category",
        "urgent",
        "score",
        "status",
        "error_code",
        "error_message",
        "cost_usd",
    ]
    assert got["urgent"].dtype == "boolean"
    assert list(got["status"]) == ["succeeded", "succeeded", "failed", "succeeded", "failed"]
    assert list(got["error_code"].dropna()) == ["missing_field", "missing_field"]
    assert provider.stats()["requests"] - before == 3
    assert isinstance(answers[0].value, Ticket)
    assert [one.number for one in answers.dead] == [2, 4]
    assert answers[2].value is None
    assert answers.cost_usd == pytest.approx(got["cost_usd"].sum())
    assert answers.report["succeeded"] == 3
    assert len(frame.merge(got, on="ticket")) == 5
    assert "5 rows, 3 answered, 2 failed, cost $0.00" in repr(answers)
    assert "<table>" in answers._repr_html_()


def test_a_dataset_comes_back_with_answers(provider: Simulator, folder: Path) -> None:
    """One of Hugging Face: its columns, then the answers, in its order."""
    rows = datasets.Dataset.from_dict({"text": ["late", "broken", "lost"], "label": [2, 0, 1]})
    answers = penstock.run(rows.sort("label"), **options(provider))
    table = answers.to_arrow()
    assert table.column_names[:3] == ["text", "label", "answer"]
    assert table["text"].to_pylist() == ["broken", "lost", "late"]
    assert "lost" in table["answer"].to_pylist()[1]


def test_the_same_call_again_pays_nothing_and_another_prompt_is_another_job(
    provider: Simulator, folder: Path
) -> None:
    """A job is known by its rows and options: columns that no request has do not count. What is kept
    of it can be forgotten."""
    rows = [{"text": f"t{number}", "x": number} for number in range(6)]
    first = penstock.run(rows, **options(provider))
    paid = provider.stats()["requests"]
    wider = [row | {"y": 1} for row in rows]
    again = penstock.run(wider, **options(provider, budget_usd=5.0))
    assert provider.stats()["requests"] == paid
    assert [one["answer"] for one in again.to_list()] == [one["answer"] for one in first.to_list()]
    assert (again.job, again.cost_usd) == (first.job, first.cost_usd)
    other = penstock.run(rows, **options(provider, prompt="Sum up: {text}"))
    assert (other.job != first.job, provider.stats()["requests"]) == (True, paid + 6)
    assert Path(first.place).parent == folder / ".penstock"
    assert (folder / ".penstock" / ".gitignore").read_text() == "*\n"
    first.forget()
    penstock.run(rows, **options(provider))
    assert provider.stats()["requests"] == paid + 12


def test_polars_arrow_lists_iterators_and_files_come_back_as_they_were(
    provider: Simulator, folder: Path
) -> None:
    """Each kind of rows has its types and order again, with the answers as further columns."""
    frame = pl.DataFrame(
        {
            "text": ["a", "b"],
            "at": pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 1, 2), eager=True),
        }
    )
    got = penstock.run(frame, **options(provider)).to_polars()
    assert got.columns[:3] == ["text", "at", "answer"]
    assert got.select("text", "at").equals(frame)
    assert got.schema["cost_usd"] == pl.Float64
    table = pa.table({"text": ["c", "d"], "n": pa.array([1, None], pa.int32())})
    back = penstock.run(table, **options(provider)).to_arrow(details=True)
    assert back.select(["text", "n"]).equals(table)
    assert back.column("answer").null_count == 0
    assert back.column("attempts").to_pylist() == [1, 1]
    texts = penstock.run(["e", "f"], **options(provider)).to_list()
    assert [sorted(row)[:3] for row in texts] == [["answer", "cost_usd", "error_code"]] * 2
    assert [row["text"] for row in texts] == ["e", "f"]
    streamed = penstock.run(({"text": t, "n": len(t)} for t in ("g", "hh")), **options(provider))
    assert [(one.row, one.ok) for one in streamed] == [
        ({"text": "g", "n": 1}, True),
        ({"text": "hh", "n": 2}, True),
    ]
    assert list(streamed.to_pandas()["n"]) == [1, 2]
    pd.DataFrame({"text": ["i", "j"], "n": [1.5, 2.5]}).to_csv(folder / "mine.csv", index=False)
    filed = penstock.run("mine.csv", **options(provider)).to_pandas()
    assert list(filed["n"]) == [1.5, 2.5]
    assert filed["answer"].str.contains("i|j").all()


def test_an_id_column_names_rows_and_files_of_lines_keep_theirs(
    provider: Simulator, folder: Path
) -> None:
    """Ids are the frame's own in answers and dead letters; OpenAI's batch lines go as they are."""
    frame = pd.DataFrame({"ticket": [70, 30], "text": ["a", None]})
    answers = penstock.run(frame, **options(provider, id_field="ticket"))
    assert [one.id for one in answers] == ["70", "30"]
    assert answers.to_pandas()["ticket"].dtype == "int64"
    with pytest.raises(penstock.BadCall, match=r"'70' is in the column 'ticket' twice"):
        penstock.run(pd.concat([frame, frame]), **options(provider, id_field="ticket"))
    line = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "sim", "messages": [{"role": "user", "content": "hello"}]},
    }
    (folder / "batch.jsonl").write_text(json.dumps(line) + "\n")
    lines = penstock.run("batch.jsonl", base_url=provider.url, workers=1)
    assert [(one.id, one.ok, one.row) for one in lines] == [("one", True, None)]
    assert list(lines.to_pandas()["id"]) == ["one"]


def test_what_cannot_be_is_refused_before_anything_is_paid(
    provider: Simulator, folder: Path
) -> None:
    """Errors name the keyword argument and the fix, and refused calls leave nothing behind."""
    before = provider.stats()["requests"]
    frame = pd.DataFrame({"text": ["a"], "blob": [b"x"]})
    for more, says in (
        ({"prompt": "Say {txt}"}, "no column 'txt'; did you mean 'text'?"),
        ({"base_ur": "x"}, "'base_ur' is no option; did you mean 'base_url'?"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"prompt": "{blob}"}, "the column 'blob' has bytes in row 1"),
        ({"model": None}, "model='…'"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "no server answers"),
        ({"lane": "apj"}, "lane"),
        ({"api_key_env": "NOT_SET"}, "name another with api_key_env"),
        ({"response_format": int.__add__}, "response_format"),
    ):
        with pytest.raises(penstock.BadCall) as refused:
            penstock.run(frame, **options(provider, **more))
        assert says in str(refused.value)
        assert "--" not in str(refused.value)
    for rows in ([], [1], 7, {"text": "a"}):
        with pytest.raises(penstock.BadCall):
            penstock.run(rows, **options(provider))
    assert provider.stats()["requests"] == before
    assert sorted(one.name for one in (folder / ".penstock").iterdir()) == [".gitignore"]


def test_a_job_that_stops_says_why_and_how_it_goes_on(provider: Simulator) -> None:
    """A spent budget is an exception with the answers so far; more budget goes on with the job."""
    rows = [{"text": f"t{number} " + "word " * 200} for number in range(40)]
    with pytest.raises(penstock.RunStopped, match="the same call with budget_usd=") as stopped:
        penstock.run(rows, **options(provider, budget_usd=0.002, concurrency=1))
    some = stopped.value.answers
    statuses = [one.status for one in some]
    assert 0 < statuses.count("succeeded") < 40
    assert statuses.count("waiting") == 40 - statuses.count("succeeded")
    answers = penstock.run(rows, **options(provider, budget_usd=5.0))
    assert answers.report["succeeded"] == 40


def test_answers_come_while_the_job_runs(folder: Path) -> None:
    """A loop gets each answer once, the earlier ones first; left, it stops the job in an orderly
    way, and the same call goes on without paying twice."""
    rows = [{"text": f"t{number}"} for number in range(60)]
    with simulator("--latency-ms", "100") as slow:
        more = options(slow, concurrency=2)
        seen = []
        for answer in penstock.stream(rows, **more):
            seen.append(answer)
            if len(seen) == 5:
                break
        eventually(lambda: not Machine(folder).at_work())
        assert 5 <= slow.stats()["requests"] < 60
        rest = list(penstock.stream(rows, **more))
        assert sorted(int(one.id) for one in rest) == list(range(1, 61))
        assert all(one.row == rows[one.number] for one in rest)
        assert slow.stats()["requests"] == 60


async def test_it_runs_beside_other_coroutines_and_in_threads(provider: Simulator) -> None:
    """Under a running loop, as in Jupyter, ``run`` works as anywhere; ``arun`` lets the loop go on;
    a thread that is not the main one may call, too."""
    rows = [{"text": f"t{number}"} for number in range(3)]
    assert len(penstock.run(rows, **options(provider))) == 3
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    answers = await penstock.arun(rows, **options(provider, prompt="Await {text}"))
    assert (len(answers), ticks > 10) == (3, True)
    got = [one async for one in penstock.stream(rows, **options(provider, prompt="Each {text}"))]
    ticking.cancel()
    assert len(got) == 3
    found: list[penstock.Answers] = []
    thread = threading.Thread(
        target=lambda: found.append(penstock.run(rows, **options(provider, prompt="Thread {text}")))
    )
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found[0].report["succeeded"] == 3


def test_a_job_is_waited_for_later(provider: Simulator) -> None:
    """``wait=False`` returns a job with a short repr, which says how far it is and is waited for."""
    job = penstock.run(["a", "b"], wait=False, **options(provider))
    assert job.key in repr(job)
    answers = job.wait(60)
    assert job.status.state == "completed"
    assert repr(job) == f"<Job {job.key}: completed, 2 of 2 rows>"
    assert len(answers) == 2


SCRIPT = """
import json, sys
import penstock
rows = [{"text": f"t{number}"} for number in range(150)]
answers = penstock.run(
    rows, prompt="S: {text}", model="sim", base_url=sys.argv[1], workers=1, concurrency=4
)
print(json.dumps(answers.report))
"""


def started(folder: Path, url: str) -> subprocess.Popen[str]:
    """Run a script without `if __name__ == "__main__"` in the folder."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Penstock([url], program=script, cwd=folder, text=True, **pipes)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_leaves_no_process_and_pays_nothing_twice(
    folder: Path, how: signal.Signals
) -> None:
    """Ctrl-C ends workers and queue in order and says how far it is and how to go on; kill -9 of the caller ends them
    as well. The same script then goes on."""
    with simulator("--latency-ms", "200") as slow:
        script = started(folder, slow.url)
        eventually(lambda: slow.stats()["requests"] >= 12)
        script.send_signal(how)
        _, told = script.communicate(timeout=120)
        assert script.returncode != 0
        if how is signal.SIGINT:
            assert "finished and kept in" in told
            assert "The same call goes on" in told
            said = re.search(r"stopped: (\d+) of 150 rows", told)
            assert said is not None
            assert f" {said[1]}/150 [" in told, "the bar ends where the job has stopped"
        eventually(lambda: not Machine(folder).at_work())
        again = started(folder, slow.url)
        out, told = again.communicate(timeout=180)
        assert again.returncode == 0, told
        assert json.loads(out)["succeeded"] == 150
        assert slow.stats()["requests"] == 150
        eventually(lambda: not Machine(folder).at_work())


def test_texts_of_a_folder_come_back_with_their_names(provider: Simulator, folder: Path) -> None:
    """As the table of `penstock run` has them. Once the folder is another one a warning says so,
    and the answers are there by their ids."""
    (folder / "notes").mkdir()
    for name in ("a.md", "b.md"):
        (folder / "notes" / name).write_text(f"the note {name}")
    job = penstock.run("notes/", wait=False, **options(provider))
    answers = job.wait()
    assert list(answers.to_pandas()["name"]) == ["a.md", "b.md"]
    assert list(answers.to_pandas()["status"]) == ["succeeded", "succeeded"]
    assert answers[1].row == {"id": "b.md", "name": "b.md"}
    (folder / "notes" / "b.md").write_text("another text")
    with pytest.warns(UserWarning, match="the source's own columns are left out: "):
        rows = job.answers.to_list()
    assert sorted(row["id"] for row in rows) == ["a.md", "b.md"]
    assert all(row["answer"] for row in rows)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_rows_of_a_database_come_back_with_answers(
    provider: Simulator, folder: Path, postgres_server: Postgres, kind: str
) -> None:
    """Columns, types and the order of the source, its refused rows among them; `keep_columns` has
    fewer of the same job."""
    rows = [(3, "late", 1.5), (7, None, None), (9, "lost", 2.5)]
    made = "CREATE TABLE tickets (number INTEGER PRIMARY KEY, text TEXT, price FLOAT)"
    url = f"sqlite:///{folder}/shop.db"
    if kind == "sqlite":
        with sqlite3.connect(folder / "shop.db") as shop:
            shop.execute(made)
            shop.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
    else:
        url = postgres_server.new_database()
        with psycopg.connect(url) as there:
            there.execute(made)
            there.cursor().executemany("INSERT INTO tickets VALUES (%s, %s, %s)", rows)
    asked = options(provider, table="tickets", id_field="number")
    answers = penstock.run(url, **asked)
    frame = answers.to_polars()
    assert frame.columns[:4] == ["number", "text", "price", "answer"]
    assert frame["number"].to_list() == [3, 7, 9]
    assert frame["price"].to_list() == [1.5, None, 2.5]
    assert frame["status"].to_list() == ["succeeded", "failed", "succeeded"]
    assert answers[2].row == {"number": 9, "text": "lost", "price": 2.5}
    fewer = penstock.run(url, **asked, keep_columns="price")
    assert (fewer.job, fewer.to_polars().columns[:3]) == (
        answers.job,
        ["number", "price", "answer"],
    )


def test_a_preview_shows_what_a_call_would_send_and_cost(
    provider: Simulator, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first requests, rows that cannot be used, tokens, and from what to what it may cost; it
    calls nothing, needs no key and leaves nothing behind."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = provider.stats()["requests"]
    rows = [{"text": "late"}, {"text": None}, {"text": "lost"}, {"text": "<b>"}]
    asked = options(provider, params={"max_tokens": 100})
    found = penstock.preview(rows, shown=2, **asked)
    assert (found.rows, found.documents, found.unusable, found.refusal) == (4, 3, 1, None)
    assert [one["doc_id"] for one in found.requests] == ["1", "3"]
    assert found.requests[0]["body"]["messages"][0]["content"] == "Categorise: late"
    assert found.problems[0].startswith("the rows line 2: missing_field")
    assert (found.tokens_out, found.tokens_out_capped) == (300, True)
    low, high = found.cost_range_usd or (0, 0)
    assert low == pytest.approx(found.tokens_in / 1e6)
    assert high == found.cost_usd == pytest.approx(low + 300 * 2 / 1e6)
    assert repr(found).startswith("<Preview: 3 documents, 1 unusable rows, about ")
    assert "&lt;b&gt;" in penstock.preview(rows[3:], **asked)._repr_html_()
    assert penstock.preview(rows, **asked | {"max_bad_rows": 0}).refusal is not None
    unpriced: dict[str, Any] = {
        name: value for name, value in asked.items() if not name.startswith("usd_")
    }
    assert penstock.preview(rows, **unpriced).cost_range_usd is None
    with pytest.raises(penstock.BadCall, match="no column 'txt'"):
        penstock.preview(rows, **{**asked, "prompt": "{txt}"})
    with pytest.raises(penstock.BadCall, match="budget_usd"):
        penstock.preview(rows, **unpriced, budget_usd=1)
    assert provider.stats()["requests"] == before
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.Table.from_pylist, list])
def test_a_sample_is_some_of_the_rows_and_is_not_paid_again(
    provider: Simulator, folder: Path, kind: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Drawn at random, a job of its own in the folder of the whole one, with a word on what all
    would cost; the same draw calls nothing, and the whole job takes its answers over."""
    rows = kind([{"name": f"n{number}", "text": f"t{number}"} for number in range(9)])
    before = provider.stats()["requests"]
    job = penstock.run(rows, **options(provider, sample=3), wait=False)
    some = job.wait(progress=False)
    assert (len(some), some.job) == (3, job.key)
    assert "-sample-" in some.job
    frame = some.to_pandas()
    assert set(frame["name"]) <= {f"n{number}" for number in range(9)}
    assert list(frame["status"]) == ["succeeded"] * 3
    assert all(one.row["name"][1:] == one.row["text"][1:] for one in some if one.row)
    assert provider.stats()["requests"] == before + 3
    again = penstock.run(rows, **options(provider, sample=3))
    assert [one.id for one in again] == [one.id for one in some]
    assert "all 9 documents, as a random sample of 3 has them" in capfd.readouterr().err
    assert provider.stats()["requests"] == before + 3
    whole = penstock.run(rows, **options(provider))
    assert (len(whole), whole.report["succeeded"]) == (9, 9)
    assert provider.stats()["requests"] == before + 9
