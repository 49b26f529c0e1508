"""Replays from the command line: what they may change, how a change is taken back, and what stays
visible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock_cli.errors import UsageProblem
from penstock_cli.main import command_line
from penstock_ledger.model import DeadLetter, ItemKey
from penstock_producer import Producer, ProducerSettings
from penstock_producer.sources import Document
from penstock_producer.sources.of_feed import open_feed_source

LONG_ID = "the-document-whose-id-is-longer-than-any-column-of-a-terminal-" + "x" * 40


class Replays:
    """A job of two dead letters; each replay is read as the feeder would and dies again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.producer = Producer(ProducerSettings(database_url=url))
        job = self.producer.open_job({"model": "m"}, job_key="night")
        self.job_id = job.job_id
        for doc_id in ("a", LONG_ID):
            job.enqueue(doc_id, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7})
        job.close()
        self.die(
            1,
            "http_400",
            {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7},
        )

    def die(self, generation: int, reason: str, request: dict[str, Any]) -> None:
        body = json.dumps(request).encode()
        letters = [
            DeadLetter(
                ItemKey(self.job_id, generation, doc),
                reason,
                1,
                1,
                f"because of {reason}",
                400,
                body,
                None,
            )
            for doc in ("a", LONG_ID)
        ]
        self.producer._outcomes.settle([], letters)

    def replay(self, *typed: str) -> tuple[dict[str, Any], str]:
        """The request that the replay sends, and what the command said."""
        answer = self.penstock("dlq", "replay", "night", *typed)
        assert answer.exit_code == 0, answer.exception
        generation = self.producer.status("night").job.generation
        documents = list(
            open_feed_source(self.producer._database, self.job_id, generation).documents({})
        )
        assert all(isinstance(document, Document) for document in documents)
        assert len(documents) == 2
        request = json.loads(documents[0].body)  # type: ignore[union-attr]  # as asserted above
        self.die(generation, f"reason_of_{generation}", request)
        return request, answer.output

    def penstock(self, *typed: str) -> Result:
        return CliRunner(env={"PENSTOCK_DATABASE_URL": self.url, "COLUMNS": "80"}).invoke(
            command_line(), list(typed)
        )


@pytest.fixture
def replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replays]:
    monkeypatch.chdir(tmp_path)
    made = Replays(f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.producer.close()


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("modle=x", r"--set modle: .*'modle'.*x\.modle"),
        ("max_tokens=abc", "--set max_tokens: 'abc' is refused; give an integer of at least 1"),
        ("max_token=5", "did you mean 'max_tokens'"),
        ("temperature=3", "--set temperature: 3 is refused; give a number from 0 to 2"),
        ("model=5", "--set model: 5 is refused"),
        ("messages=[]", "messages is not a parameter"),
    ],
)
def test_an_unusable_change_is_refused(replays: Replays, typed: str, told: str) -> None:
    """A typo or a wrong type is named with its fix before anything is replayed (D3)."""
    answer = replays.penstock("dlq", "replay", "night", "--set", typed)
    assert isinstance(answer.exception, UsageProblem)
    assert answer.exception.exit_status == 2
    assert re.search(told, str(answer.exception)), answer.exception
    assert replays.producer.status("night").job.generation == 1


def test_a_change_stays_until_it_is_taken_back(replays: Replays) -> None:
    """Later replays keep what earlier ones set, say so, and `--unset` gives back what the document
    had (D3)."""
    first, told = replays.replay(
        "--set", "max_tokens=9", "--set", "x.safe=true", "--edit-prompt", "Briefly: {prompt}"
    )
    assert (first["max_tokens"], first["safe"], first["messages"][0]["content"]) == (
        9,
        True,
        "Briefly: hi",
    )
    assert "max_tokens=9 (generation 2)" in told
    assert "--unset max_tokens" in told
    second, _ = replays.replay()
    assert second == first
    third, told = replays.replay("--unset", "max_tokens", "--unset", "x.safe", "--unset", "prompt")
    assert third == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
    assert "keep what" not in told


def test_reasons_of_earlier_generations_stay_visible(replays: Replays) -> None:
    """`dlq list --generation` and `dlq show` tell why a document was dead before it was replayed
    (D3)."""
    replays.replay()
    now, before = (
        replays.penstock("dlq", "list", "night"),
        replays.penstock("dlq", "list", "night", "--generation", "1"),
    )
    assert "reason_of_2" in now.output
    assert "http_400" not in now.output
    assert "dlq list night --generation 1" in now.output
    assert "because of http_400" in before.output
    shown = replays.penstock("dlq", "show", "night", "a").output
    assert "because of reason_of_2" in shown
    assert "in gen. 1" in shown
    assert "http_400: because of http_400" in shown


def test_ids_are_never_cut(replays: Replays) -> None:
    """What the next command is given can be copied from a terminal of 80 columns and from a pipe
    (D37)."""
    assert LONG_ID in replays.penstock("dlq", "list", "night").output
    assert replays.job_id in replays.penstock("jobs").output
