"""Promises of traces, on a real fleet with a collector that decodes what it is sent: one item, one
trace, no text."""

from __future__ import annotations

import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet import Fleet, until
from forked import run
from metrics_page import value
from otlp import ENDPOINT, CallAnswer, Collector
from prometheus_client.parser import text_string_to_metric_families
from servers import free_port

from penstock_ledger.model import ItemKey, JobState
from penstock_producer.feed.tracing import trace_of

DOCUMENTS = 30
SECRET = "quokka"  # a word of every document and of every prompt, and of nothing else
CALLERS_SPAN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Night:
    """A job that met faults, a worker that was killed, and a replay; and the spans of all that."""

    fleet: Fleet
    collector: Collector
    job_id: str
    traces: dict[str, list[CallAnswer]]

    def all(self, name: str) -> list[CallAnswer]:
        return [
            span for spans in self.traces.values() for span in spans if span.name.split()[0] == name
        ]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("traced")
    with Collector() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENDPOINT, collector.url)
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with Fleet(folder) as fleet:
            job_id = _work(fleet)
            yield Night(fleet, collector, job_id, collector.traces())


def _work(fleet: Fleet) -> str:
    """One of two workers dies with answers in hand, the other finishes; then the dead letters are
    replayed."""
    fleet.provider.start(
        "--latency-ms",
        "100",
        "--error-rate",
        "0.2",
        "--poison-rate",
        "0.1",
        "--retry-after-s",
        "0.1",
    )
    control = fleet.control(trace_share=1)
    doomed = fleet.worker(8, trace_share=1, failpoints="before_commit:kill")
    survivor = fleet.worker(8, trace_share=1)
    fleet.ready(doomed, survivor)
    source = fleet.folder / "docs.jsonl"
    source.write_text(
        "".join(f'{{"id":"doc-{n}","text":"{SECRET} {n}"}}\n' for n in range(DOCUMENTS))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock_producer.accepting.new_jobs.callers_span", lambda: CALLERS_SPAN)
        job = fleet.producer.submit(source, fleet.spec(), job_key="night")
    assert doomed.wait(60) == -signal.SIGKILL
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert fleet.producer.replay("night") > 0
    fleet.wait_for(job, JobState.COMPLETED, 60)
    for process in (survivor, control):
        process.send(signal.SIGTERM)
        assert process.wait(30) == 0
    return job.job_id


def test_one_item_is_one_trace(night: Night) -> None:
    """Every document has one trace, whose id follows from its key; its root is its being sent, all
    else hangs below."""
    first = {name: spans for name, spans in night.traces.items() if "~" not in name}
    assert set(first) == {f"doc-{n}" for n in range(DOCUMENTS)}
    for document, spans in first.items():
        root = trace_of(ItemKey(night.job_id, 1, document))
        assert {span.trace for span in spans} == {f"{root.trace_id:032x}"}
        assert [span.span for span in spans if not span.parent] == [f"{root.span_id:016x}"]
        known = {span.span for span in spans}
        assert len(known) == len(spans)
        assert {span.parent for span in spans if span.parent} <= known


def test_spans_are_as_the_conventions_say(night: Night) -> None:
    """Names, kinds, places in the tree, and attributes by OpenTelemetry's conventions for messaging
    and generative AI."""
    for spans in night.traces.values():
        by_id = {span.span: span for span in spans}
        above = {span.name.split()[0]: by_id[span.parent].name for span in spans if span.parent}
        assert above == dict.fromkeys(("wait", "chat", "settle"), "process penstock.api") | {
            "process": "send penstock.api"
        }
        assert all(span.ended_ns >= span.began_ns > 10**18 for span in spans)
        calls = [span for span in spans if span.kind == "CLIENT"]
        for call in calls:
            process = by_id[call.parent]
            assert process.began_ns <= call.began_ns <= call.ended_ns <= process.ended_ns
    assert {(span.name, span.kind) for spans in night.traces.values() for span in spans} == {
        ("send penstock.api", "PRODUCER"),
        ("process penstock.api", "CONSUMER"),
        ("chat sim", "CLIENT"),
        ("wait", "INTERNAL"),
        ("settle", "INTERNAL"),
    }
    for operation in ("send", "process"):
        for span in night.all(operation):
            document = span.attributes["penstock.document.id"]
            assert (
                span.attributes.items()
                >= {
                    "messaging.system": "celery",
                    "messaging.operation.name": operation,
                    "messaging.operation.type": operation,
                    "messaging.destination.name": "penstock.api",
                    "penstock.job.id": night.job_id,
                }.items()
            )
            assert span.attributes["messaging.message.id"].startswith(f"{night.job_id}:{document}")
    for call in night.all("chat"):
        assert (
            call.attributes.items()
            >= {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "sim",
                "gen_ai.provider.name": "default",
                "server.address": "127.0.0.1",
                "server.port": night.fleet.provider.port,
            }.items()
        )
        if call.failed:
            assert call.attributes["error.type"] in (
                "server_error",
                "bad_request",
                "context_overflow",
                "content_filter",
            )
        else:
            assert call.attributes["http.response.status_code"] == 200
            assert call.attributes["gen_ai.usage.input_tokens"] > 0
            assert call.attributes["gen_ai.usage.output_tokens"] > 0
            assert call.attributes["gen_ai.response.finish_reasons"] == ["stop"]


def test_who_speaks_is_told(night: Night) -> None:
    """Each part of the fleet is a service of its own, with its version and its process; OTEL_* adds
    to that."""
    for span in night.all("send"):
        assert span.resource["service.name"] == "penstock-control"
    for span in night.all("process"):
        assert span.resource["service.name"] == "penstock-api"
        assert span.resource["deployment.environment.name"] == "test"
        assert {"service.version", "service.instance.id"} <= set(span.resource)


def test_a_retry_is_another_process_span(night: Night) -> None:
    """An item has as many process spans as tries that were settled; all but the last say when it is
    tried again."""
    retried = 0
    for spans in night.traces.values():
        tries = [span for span in spans if span.kind == "CONSUMER"]
        outcomes = [span.attributes["penstock.outcome"] for span in tries]
        assert outcomes[:-1] == ["retry"] * (len(tries) - 1)
        assert outcomes[-1] in ("done", "dead")
        assert [span.attributes["penstock.attempt"] for span in tries] == [
            n + 1 for n in range(len(tries))
        ]
        assert all(span.failed == (span.attributes["penstock.outcome"] != "done") for span in tries)
        retried += len(tries) > 1
    assert retried > 0, "no fault was met: the test would prove nothing"


def test_a_killed_worker_leaves_the_trace_to_the_next(night: Night) -> None:
    """What a killed worker had in flight is gone from the trace; the next worker's try is in the
    same one, and says so."""
    first_tries = [
        next(span for span in spans if span.kind == "CONSUMER") for spans in night.traces.values()
    ]
    crashed = [
        span.attributes["penstock.redelivered"]
        for span in first_tries
        if "penstock.crashes" in span.attributes
    ]
    assert crashed
    assert all(crashed)
    assert len({span.resource["service.instance.id"] for span in night.all("process")}) == 1


def test_a_replay_is_a_trace_of_its_own(night: Night) -> None:
    """A replayed document has a second trace that links to the first; a first one links to the span
    of the submission."""
    caller = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    replayed = [name for name in night.traces if name.endswith("~2")]
    assert replayed
    for name, spans in night.traces.items():
        document, _, generation = name.partition("~")
        (sent,) = [span for span in spans if span.kind == "PRODUCER"]
        earlier = trace_of(ItemKey(night.job_id, 1, document))
        first = (f"{earlier.trace_id:032x}", f"{earlier.span_id:016x}")
        assert sent.links == ((caller, first) if generation else (caller,))


def test_no_text_of_a_document_leaves(night: Night) -> None:
    """Neither prompts nor answers, nor what a provider says of them, are in what is sent to the
    collector."""
    assert night.collector.payloads
    answers = [result.body for result in night.fleet.producer.results("night")]
    answered = {
        word
        for body in answers
        for word in body.decode().split('"content":"')[1].split('"')[0].split()[:3]
    }
    for payload in night.collector.payloads:
        assert SECRET.encode() not in payload
        assert b"Summarise" not in payload
    said = {letter.last_error for letter in night.fleet.producer.dead_letters("night")}
    assert said
    assert answered
    assert not [
        words
        for words in said
        if any(words.encode() in payload for payload in night.collector.payloads)
    ]


def test_a_collector_that_is_away_changes_nothing(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends, and so does its process, with status 0; spans that could not be sent are named
    in the log, and counted."""
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    port = free_port()
    worker = night.fleet.worker(8, control=True, trace_share=1, metrics_port=port)
    job = night.fleet.submit(10, key="away")
    night.fleet.wait_for(job, JobState.COMPLETED, 60)
    night.fleet.account(job, 10)
    until(
        lambda: "the collector does not take spans" in worker.log.read_text(),
        30,
        "the loss is said",
    )
    until(
        lambda: (lost := _lost(port))["control"] == 10 and lost["api"] >= 40,
        30,
        "all that was lost is counted",
    )
    worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0


def _lost(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [
        sample
        for family in families
        for sample in family.samples
        if sample.name == "penstock_trace_spans_total"
    ]
    return {
        sample.labels["lane"]: sample.value
        for sample in samples
        if sample.labels["result"] == "failed"
    }


def test_one_machine_mode_tells_all_before_it_ends(
    night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock run` feeds and its workers work: when it has ended, every span and the last metrics
    of both have arrived."""
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(f'{{"id":"doc-{n}","text":"a"}}\n' for n in range(10)))
    words = [
        "run",
        str(source),
        "--out",
        str(tmp_path / "out"),
        "--no-progress",
        "--workers",
        "1",
    ]
    words += [
        "--base-url",
        night.fleet.provider.url,
        "--model",
        "sim",
        "--prompt",
        "Summarise: {text}",
    ]
    with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        monkeypatch.setenv("PENSTOCK_TRACE_SHARE", "1")
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
        done = run(words, 120)
    # 3: the provider refuses some documents for good
    assert done.returncode in (0, 3), done.stdout + done.stderr
    last = {service: reports[-1].page() for service, reports in collector.figures().items()}
    assert value(last["penstock-api"], "penstock_commit_items_sum", lane="api") >= 10
    assert value(last["penstock-control"], "penstock_fed_total", lane="api") == 10
    traces = collector.traces()
    assert traces.keys() == {f"doc-{n}" for n in range(10)}
    for spans in traces.values():
        names = Counter(span.name.split()[0] for span in spans)
        assert names["send"] == 1
        assert names["process"] == names["wait"] == names["chat"] == names["settle"] >= 1
