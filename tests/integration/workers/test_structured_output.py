"""Answers that must follow a schema, and models that give way to others, in a real fleet: calls,
books, figures and columns."""

from __future__ import annotations

import base64
import csv
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet

from penstock_ledger.model import JobState

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["label", "score"],
}
TIME_S = 60.0
DOCUMENTS = 6  # doc-0 … doc-5
STUBBORN, LONG = "review 1", "review 2"


class Model(ThreadingHTTPServer):
    """`small` misses the schema until it is shown its answer, and never meets it for one text;
    another text is too long for it. `big` is always right, and `broken` never answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: Counter[str] = Counter()
        self.parts: list[list[dict[str, Any]]] = []  # of messages that are more than a text

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        model, messages = request["model"], request["messages"]
        self.calls[model] += 1
        text = messages[0]["content"]
        if isinstance(text, list):
            self.parts.append(text)
        if model == "broken":
            return 500, {"error": {"message": "it is broken"}}
        if model == "small" and LONG in text:
            return 400, {"error": {"code": "context_length_exceeded", "message": "too long"}}
        is_right = model == "big" or (len(messages) == 3 and STUBBORN not in text)
        content = json.dumps({"label": model, "score": 7} if is_right else {"label": model})
        choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return 200, {
            "model": f"{model}-2026",
            "choices": [choice],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10},
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, Model)
        status, body = self.server.answer(request)
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def test_answers_are_repaired_and_models_give_way(model: Model, tmp_path: Path) -> None:
    """Every document has its fields as columns: some after the model saw its mistake, some from the
    next model, each paid."""
    price = {"usd_per_mtok_in": 1, "usd_per_mtok_out": 1}
    dear = {"usd_per_mtok_in": 10, "usd_per_mtok_out": 10}
    settings: dict[str, object] = {
        f"providers__default__{name}": value for name, value in price.items()
    }
    settings |= {f"providers__dear__{name}": value for name, value in dear.items()}
    settings |= {"providers__default__base_url": model.url, "providers__dear__base_url": model.url}
    with Fleet(tmp_path / "fleet", settings=settings) as fleet:
        fleet.ready(fleet.worker(control=True))
        job = fleet.submit(
            DOCUMENTS,
            model="small",
            response_schema=SCHEMA,
            schema_repairs=1,
            fallback=["dear/big"],
        )
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        results = {result.key.doc_id: result for result in fleet.producer.results(job.job_id)}
        assert {doc: result.model for doc, result in results.items()} == {
            f"doc-{number}": "big-2026" if number in (1, 2) else "small-2026"
            for number in range(DOCUMENTS)
        }
        assert {result.attempts for result in results.values()} == {1}
        # two answers of small; two of small and one of big; a refusal, which is free, and one of
        # big
        assert [results[f"doc-{n}"].cost_microusd for n in range(3)] == [220, 220 + 1100, 1100]
        assert [results[f"doc-{n}"].calls for n in range(3)] == [2, 3, 2]
        assert model.calls == {"small": 4 * 2 + 2 + 1, "big": 2}
        report = json.loads(fleet.run("report", job.job_id, "--json").stdout)
        assert (report["repairs"], report["fallbacks"], report["retries"], report["calls"]) == (
            5,
            2,
            0,
            13,
        )
        assert report["cost_usd"] == pytest.approx((4 * 220 + 1320 + 1100) / 1e6)
        assert "5 asked again for the schema · 2 asked of another model" in " ".join(
            fleet.run("report", job.job_id).stdout.split()
        )
        made = fleet.producer.made_with(job.job_id)
        assert sorted((one.provider, one.usd_per_mtok_in) for one in made) == [
            ("dear", 10.0),
            ("default", 1.0),
        ]
        assert [entry["penstock"] for entry in report["made_with"]] == [
            one.penstock for one in made
        ]
        assert report["spec_digest"] == fleet.producer.status(job.job_id).job.digest
        fleet.penstock("results", job.job_id, "-o", str(tmp_path / "labels.csv"))
        fleet.penstock("results", job.job_id, "-o", str(tmp_path / "made.jsonl"), "--provenance")
        lines = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()]
        by_doc = {line["custom_id"]: line["penstock"] for line in lines}
        for doc, (answered, paid) in {
            "doc-0": ("small-2026", 1.0),
            "doc-2": ("big-2026", 10.0),
        }.items():
            (combination,) = by_doc[doc]["made_with"]
            assert (by_doc[doc]["model"], by_doc[doc]["spec_digest"]) == (
                answered,
                report["spec_digest"],
            )
            assert (combination["usd_per_mtok_in"], combination["penstock"]) == (
                paid,
                made[0].penstock,
            )
        with (tmp_path / "labels.csv").open(newline="") as file:
            rows = {row["id"]: (row["label"], row["score"]) for row in csv.DictReader(file)}
        assert rows["doc-0"] == ("small", "7")
        assert rows["doc-1"] == ("big", "7")
        _describe_pictures(fleet, model, tmp_path / "photos")


def _describe_pictures(fleet: Fleet, model: Model, folder: Path) -> None:
    """A folder of pictures is a source: each goes behind the prompt to the model, small ones and
    those that travel by reference, and what is no picture is a dead letter with its name."""
    folder.mkdir()
    pictures = {
        "a.jpg": b"\xff\xd8\xff" + bytes(100),
        "b/c.png": b"\x89PNG\r\n\x1a\n" + os.urandom(50_000),
    }
    for name, content in (pictures | {"b/notes.doc": b"not a picture"}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    spec = {
        "model": "big",
        "prompt": "Describe {name}, of {bytes} bytes ({media_type})",
        "max_bad_rows": 1,
    }
    job = fleet.producer.submit(f"{folder}/", spec)
    fleet.wait_for(job, JobState.COMPLETED, TIME_S)
    kinds = {"a.jpg": "image/jpeg", "b/c.png": "image/png"}
    for name, content in pictures.items():
        text = f"Describe {name.rpartition('/')[2]}, of {len(content)} bytes ({kinds[name]})"
        url = f"data:{kinds[name]};base64,{base64.b64encode(content).decode()}"
        assert [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": url}},
        ] in model.parts
    assert {result.key.doc_id for result in fleet.producer.results(job.job_id)} == set(pictures)
    assert [letter.key.doc_id for letter in fleet.producer.dead_letters(job.job_id)] == [
        "b/notes.doc"
    ]


def test_while_a_breaker_is_open_items_go_to_the_next_model(model: Model, tmp_path: Path) -> None:
    """A provider that only fails gets some calls and some probes: no document spends all its
    attempts on it, and all are done."""
    settings: dict[str, object] = {
        "providers__default__base_url": model.url,
        "providers__dear__base_url": model.url,
    }
    with Fleet(tmp_path / "fleet", settings=settings) as fleet:
        fleet.ready(fleet.worker(control=True, concurrency=4, retry_base_s=0.05, retry_cap_s=0.2))
        job = fleet.submit(40, model="broken", fallback=["dear/big"], max_attempts=10)
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        models = Counter(result.model for result in fleet.producer.results(job.job_id))
        assert models == {"big-2026": 40}
        assert model.calls["big"] == 40
        assert model.calls["broken"] < 80, "two calls of each document would be more"
        shown = " ".join(fleet.run("report", job.job_id).stdout.split())
        assert "40 asked of another model" in shown
