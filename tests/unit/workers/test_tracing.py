"""Promises of traces that need neither a fleet nor a collector: ids, sampling, the header, and what
is off costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from envelopes import decode_envelope
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock_ledger.model import Feed, FeedKind, ItemKey, Job, JobState
from penstock_ledger.reasons import By, Reason
from penstock_producer.feed import tracing, wire
from penstock_producer.job.spec import JobSpec
from penstock_workers.item.attempt import Attempt, Item, Marks, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Outcome, Parked, Released, Retry
from penstock_workers.settings import ProviderSettings, WorkerSettings
from penstock_workers.tracing.sink import SPANS_HELD, SpanSink
from penstock_workers.tracing.traces import FeedSpans, ItemTraces, Kind, ModelCalls, Span

KEY = ItemKey("job_a", 1, "doc-1")
HEADER = tracing.traceparent(tracing.trace_of(KEY))
GIVEN_UP = Released("given up by this worker")
trace_ids = st.integers(0, 2**128 - 1)
shares = st.floats(0, 1)


def test_the_ids_of_an_item_never_change() -> None:
    """Processes of other releases and other machines must come to the same trace: the digest is
    part of the contract."""
    assert tracing.trace_of(KEY) == (0x0962D723723E10866705C8F80DDC5EB4, 0x5E2A85FBBB139119)


def test_each_part_of_the_key_makes_another_trace() -> None:
    """Job, generation and document tell traces apart, and so do those that look alike when they are
    put together."""
    keys = [
        KEY,
        KEY._replace(job_id="job_b"),
        KEY._replace(generation=2),
        KEY._replace(doc_id="doc-2"),
    ]
    keys += [ItemKey("a", 1, "1b"), ItemKey("a1", 1, "b"), ItemKey("a", 11, "b")]
    assert len({tracing.trace_of(key) for key in keys}) == len(keys)


@given(trace_ids, shares)
def test_sampling_is_opentelemetrys_own(trace_id: int, share: float) -> None:
    """OpenTelemetry's TraceIdRatioBased with the same share takes the same traces."""
    decision: Any = TraceIdRatioBased(share).should_sample(None, trace_id, "").decision
    theirs = decision.is_sampled()
    assert tracing.Sampler(share).takes(trace_id) == theirs


@given(trace_ids, shares, shares)
def test_a_larger_share_takes_more(trace_id: int, one: float, other: float) -> None:
    """What a smaller share takes, a larger one takes too; all of it takes all, and nothing takes
    nothing."""
    few, many = sorted((one, other))
    assert not tracing.Sampler(few).takes(trace_id) or tracing.Sampler(many).takes(trace_id)
    assert tracing.Sampler(1).takes(trace_id)
    assert not tracing.Sampler(0).takes(trace_id)


def test_the_header_is_read_by_opentelemetry() -> None:
    """Its own propagator finds in our header the span that we put there, sampled."""
    carrier = {tracing.TRACEPARENT_HEADER: HEADER}
    found = trace.get_current_span(
        TraceContextTextMapPropagator().extract(carrier)
    ).get_span_context()
    assert (found.trace_id, found.span_id) == tracing.trace_of(KEY)
    assert found.trace_flags.sampled


@pytest.mark.parametrize(
    "header",
    [
        None,
        7,
        "",
        HEADER[:-1],
        HEADER.upper(),
        f"{HEADER} ",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
    ],
)
def test_what_is_no_header_is_left_out(header: object) -> None:
    """Headers come from outside: another type, another form or an id of zeros is none."""
    assert tracing.parse_traceparent(header) is None


def test_only_traced_messages_carry_the_header() -> None:
    """It is an ordinary header of the message, once; a message without it is as it always was."""
    plain = wire.encode_item(KEY, queue="q", body=b"{}", ref=None)
    traced = wire.encode_item(KEY, queue="q", body=b"{}", ref=None, trace=HEADER)
    assert b"traceparent" not in plain
    headers = json.loads(traced)["headers"]
    assert headers.pop("traceparent") == HEADER
    assert headers == json.loads(plain)["headers"]
    assert decode_envelope(traced) == decode_envelope(plain)


def test_the_callers_span_is_found_without_importing_anything() -> None:
    """A span that is open where a job is submitted is named by its header; where there is none,
    nothing is."""
    assert tracing.callers_span() is None
    with use_span(
        NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1)))
    ):
        assert tracing.callers_span() == f"00-{0xA:032x}-{0xB:016x}-01"


OFF_THEN_ON = """
    import sys
    from penstock_workers.build import build_engine
    from penstock_workers.settings import ProviderSettings, WorkerSettings
    from penstock_workers.tracing import open_tracing

    build_engine(WorkerSettings())
    with open_tracing(WorkerSettings(), "api") as tracing:
        print(tracing, "penstock_workers.tracing.traces" in sys.modules)
    print([name for name in sys.modules if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk.trace"))])

    sys.modules["opentelemetry.exporter"] = None  # as if it were not installed
    with open_tracing(WorkerSettings(trace_share=0.25), "api"):
        print("on")
"""


def test_off_imports_nothing_and_on_says_what_to_install() -> None:
    """With a share of 0 a worker imports no exporter and none of our own rooms for spans (redis-py
    has imports of its own); above 0 without the extra, the error names setting, value, extra and
    way out."""
    script = [sys.executable, "-c", textwrap.dedent(OFF_THEN_ON)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["None False", "[]"], done.stderr
    for part in ("trace_share = 0.25", "pip install 'penstock[otel]'", "PENSTOCK_TRACE_SHARE"):
        assert part in done.stderr.splitlines()[-1]


# -- what a worker decides and tells ---------------------------------------------------------------


def _attempt(header: object = None, **marks: int) -> Attempt:
    """An attempt whose message was read, with its further marks."""
    kwargs = {"v": 1, "job": KEY.job_id, "gen": KEY.generation, "doc": KEY.doc_id, "body": {}}
    headers = {} if header is None else {"traceparent": header}
    job = JobView(KEY.job_id, JobSpec(), ProviderSettings(), 1)
    delivery = Delivery("t", kwargs, headers, queue="penstock.api")
    item = Item.of(delivery, wire.decode_item(kwargs, {}), _marks(read=1_000, **marks))
    return Attempt.at(item, job, b"{}")


def _marks(**later: int) -> Marks:
    marks: Marks = {"claimed": 1_000, "decided": 5_000}
    return marks | cast("Marks", later)


def _spans_of(
    attempt: Delivery | Attempt, outcome: Outcome = GIVEN_UP, share: float = 1.0
) -> list[Span]:
    """What a worker with that share hands over once the item is settled."""
    spans: list[Span] = []
    ItemTraces(share, "api", ModelCalls(WorkerSettings()), spans.extend).settled(
        [Settled(attempt, outcome)]
    )
    return spans


@pytest.mark.parametrize(
    ("header", "share", "traced"),
    [
        (HEADER, 1e-9, True),
        (f"{HEADER[:-2]}00", 1e-9, False),
        (None, 1e-9, False),
        (None, 1.0, True),
        ("x", 1e-9, False),
    ],
)
def test_the_feeders_word_goes_first(header: object, share: float, traced: bool) -> None:
    """An item is traced when its message says so, whatever the worker's share; else as the worker's
    share says."""
    spans = _spans_of(_attempt(header), share=share)
    assert bool(spans) == traced
    if spans:
        assert spans[-1].context.trace_id == tracing.trace_of(KEY).trace_id
        assert spans[-1].parent == (tracing.trace_of(KEY) if header == HEADER else None)


def test_a_message_that_names_no_item_is_not_traced() -> None:
    """Without a key there is no trace to put it in."""
    assert not _spans_of(Delivery("t", None, {}))


def test_an_attempt_without_marks_is_not_traced() -> None:
    """Where tracing is off a mark keeps nothing, and nothing is made of the item."""
    attempt = _attempt(HEADER)
    attempt.marks = None
    attempt.mark("called")
    assert attempt.marks is None
    assert not _spans_of(attempt)


def test_an_item_turned_away_at_once_has_a_whole_trace() -> None:
    """Whatever step was the last, the spans there are have a beginning, an end and a parent, and no
    call is invented."""
    spans = _spans_of(_attempt(HEADER))
    assert [span.name for span in spans] == ["wait", "settle", "process penstock.api"]
    assert all(span.ended_ns >= span.began_ns >= 1_000 for span in spans)
    process = spans[-1]
    assert process.parent == tracing.trace_of(KEY)
    assert not process.error
    assert {span.parent for span in spans[:-1]} == {process.context}


@pytest.mark.parametrize(
    ("seated", "prepared", "waits_for", "waited_ms"),
    [(2_000_000, 3_000_000, "quota", 6.0), (8_000_000, 8_000_000, "slot", 1.0)],
)
def test_the_wait_is_named_by_its_longest_part(
    seated: int, prepared: int, waits_for: str, waited_ms: float
) -> None:
    """From the claim to its turn an item waits for a slot and then for the quota: the span tells
    both apart."""
    wait = _spans_of(
        _attempt(seated=seated, prepared=prepared, admitted=9_000_000, decided=9_500_000)
    )[0]
    assert (wait.began_ns, wait.ended_ns) == (1_000, 9_000_000)
    assert wait.attributes["penstock.wait.for"] == waits_for
    assert wait.attributes["penstock.wait.quota_ms"] == waited_ms
    assert wait.attributes["penstock.wait.slot_ms"] == (seated - 1_000) / 1e6


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Retry(1.0, "rate_limited", "slow down, said the quokka"), "rate_limited"),
        (Parked(pauses=Reason("out_of_credit", By.PROVIDER)), "out_of_credit"),
        (Parked(pauses=Reason("x", By.CONTROL, {"detail": "the quokka"})), "x"),
    ],
)
def test_errors_are_named_and_not_quoted(outcome: Retry | Parked, name: str) -> None:
    """The name of a failure is in the span; what a provider, a setting or a hook said with it is
    not."""
    spans = _spans_of(_attempt(), outcome)
    process = spans[-1]
    assert process.error
    assert process.attributes["error.type"] == name
    assert "quokka" not in repr(spans)


def test_a_feed_tells_of_what_it_traces() -> None:
    """Of a group only traced documents have spans, without a parent; one that was lost and sent
    again is a child of its first."""
    told: list[Span] = []
    job = Job("job_a", "k", {}, {}, "d", JobState.RUNNING, None, 1, None, 0.0, None)
    feed = Feed("job_a", 1, FeedKind.SOURCE, {}, False, 1)
    spans = FeedSpans(tracing.Sampler(0.5), told.extend, job, feed)
    keys = [KEY._replace(doc_id=f"doc-{n}") for n in range(200)]
    traced = [key for key in keys if spans.header(key) is not None]
    assert 0 < len(traced) < len(keys)
    spans.sent(keys, "penstock.api", 1)
    assert [span.context for span in told] == [tracing.trace_of(key) for key in traced]
    assert not any(span.parent or span.links for span in told)
    told.clear()
    spans.sent(traced[:1], "penstock.api", 1, again=True)
    (again,) = told
    assert again.parent == tracing.trace_of(traced[0]) != again.context


# -- limits ----------------------------------------------------------------------------------------


class _Stuck(SpanExporter):
    """A collector that takes the first batch and does not answer until it is let."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.let_go.wait(30)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.let_go.set()


def test_no_more_is_kept_than_the_limit() -> None:
    """With a collector that hangs, what is beyond the limit is dropped and counted; giving a span
    never waits."""
    exporter = _Stuck()
    sink = SpanSink("api", exporter)
    span = Span("wait", Kind.INTERNAL, tracing.trace_of(KEY), None, 1, 2, {})
    sink.put(span for _ in range(SPANS_HELD + 100))
    counts = {sample.labels[1]: sample.value for sample in sink.figures()}
    assert counts == {"delivered": 0, "failed": 0, "dropped": 100}
    exporter.let_go.set()
    sink.close()
    counts = {sample.labels[1]: sample.value for sample in sink.figures()}
    assert counts == {"delivered": SPANS_HELD, "failed": 0, "dropped": 100}
