"""Names of queues, what workers say that they serve, and in what order they look into their
queues."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ledger import WorkerSeen, keys
from penstock_ledger.model import Feed, FeedKind
from penstock_producer.feed.queues import (
    NAMES_MAX,
    SERVES,
    TASKS_MAX,
    TEXT_BYTES,
    MissingModel,
    Served,
    Serving,
    missing_model,
    model_queues,
    queue_name,
    serving_of,
    unserved_queues,
)
from penstock_producer.feed.routes import Routes, model_of
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document
from penstock_workers.broker.connections import FIRST, QueueOrder
from penstock_workers.celery_app.app import create_app
from penstock_workers.errors import TooManyNames
from penstock_workers.lanes.registry import home_queue
from penstock_workers.settings import WorkerSettings

MODELS = st.one_of(
    st.text(min_size=1, max_size=2_000),
    st.from_regex(r"[A-Za-z0-9._~/:-]{1,100}", fullmatch=True),
    st.sampled_from(
        [
            "tiny1",
            "Qwen/Qwen2.5-0.5B",
            "s3://bucket/weights/",
            "/models/x",
            "..",
            "penstock.gpu",
            "a\nb",
            "\udcff",
        ]
    ),
)


@given(MODELS, MODELS)
def test_a_models_queue_has_a_bounded_safe_name_of_its_own(one: str, other: str) -> None:
    """Whatever a model is called, its queue is one of the lane by the ledger's rule, and two models
    never share one."""
    names = [queue_name("gpu", model) for model in (one, other)]
    for name in names:
        assert keys.is_queue_of("penstock.gpu", name)
        assert len(name) <= 80
        assert keys.lane_queue(name) == "penstock.gpu"
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.parametrize(
    ("model", "queue"),
    [
        (None, "penstock.gpu"),
        ("tiny1", "penstock.gpu.tiny1"),
        ("Qwen/Qwen2.5-0.5B", "penstock.gpu.Qwen_Qwen2.5-0.5B~b3a114d7599169f6"),
    ],
)
def test_names_of_queues_stay(model: str | None, queue: str) -> None:
    """Autoscalers and dashboards name them: one that is safe is shown as it is, others end in a
    digest."""
    assert queue_name("gpu", model) == queue


def test_only_lanes_with_models_of_their_own_have_queues_of_models() -> None:
    """The api lane keeps its one queue, whatever model a job names."""
    assert queue_name("api", "gpt") == "penstock.api"
    assert model_queues("gpu", ["a", "b", "a"]) == ["penstock.gpu.a", "penstock.gpu.b"]


# -- routes ----------------------------------------------------------------------------------------


class Book:
    """Plays the ledger: at most two queues, and one job that is bound."""

    def __init__(self, bound: str | None = None) -> None:
        self.queues = self
        self.noted: list[str] = []
        self._bound = bound

    def bound(self, _job_id: str) -> str | None:
        return self._bound

    def is_of(self, lane: str, name: str) -> bool:
        return name == lane or keys.is_queue_of(lane, name)

    def note(self, _lane: str, queues: Sequence[str]) -> frozenset[str]:
        self.noted += queues
        return frozenset(queue for queue in queues if len(set(self.noted)) > 2)


def documents(*bodies: object) -> list[Document]:
    return [
        Document(f"d{number}", json.dumps(body).encode(), str(number), number, {})
        for number, body in enumerate(bodies)
    ]


def routes(spec: dict[str, object], book: Book, kind: FeedKind = FeedKind.SOURCE) -> Routes:
    feed = Feed("job", 1, kind, {}, False, 0)
    return Routes(JobSpec.from_json(spec), str(spec["lane"]), feed, book, clock=lambda: 0.0)  # type: ignore[arg-type]  # a double


def by_queue(route: Routes, given_documents: list[Document]) -> dict[str, list[str]]:
    return {
        queue: [document.doc_id for document in some]
        for queue, some in route.sorted(given_documents)
    }


def test_documents_go_to_the_queue_of_the_model_that_they_name() -> None:
    """Batch lines each by their own model, in their order; what names none goes to the lane's
    queue, or where its job went."""
    bodies = ({"model": "a"}, {"model": "b"}, {"model": "a"}, {"model": 7}, [1])
    lines: dict[str, object] = {"lane": "gpu"}
    sorted_lines = by_queue(routes(lines, Book()), documents(*bodies))
    assert sorted_lines == {
        "penstock.gpu.a": ["d0", "d2"],
        "penstock.gpu.b": ["d1"],
        "penstock.gpu": ["d3", "d4"],
    }
    assert by_queue(routes(lines, Book("penstock.gpu.a")), documents({"n": 1})) == {
        "penstock.gpu.a": ["d0"]
    }
    assert by_queue(routes(lines, Book("no queue")), documents({"n": 1})) == {
        "penstock.gpu": ["d0"]
    }
    assert by_queue(routes({"lane": "api"}, Book()), documents(*bodies[:3])) == {
        "penstock.api": ["d0", "d1", "d2"]
    }


def test_a_replay_follows_the_model_that_it_was_changed_to() -> None:
    """Requests of a prompt job are not parsed; those of its replay are, as a replay may name
    another model."""
    spec: dict[str, object] = {"lane": "gpu", "prompt": "{text}", "model": "a"}
    assert by_queue(routes(spec, Book()), documents({"model": "a"})) == {"penstock.gpu.a": ["d0"]}
    changed = by_queue(routes(spec, Book(), FeedKind.REPLAY), documents({"model": "b"}))
    assert changed == {"penstock.gpu.b": ["d0"]}


def test_models_without_room_wait_in_the_lanes_queue() -> None:
    """A file that names thousands of models opens no thousands of queues, and each is noted once,
    not per document."""
    book = Book()
    found = by_queue(
        routes({"lane": "gpu"}, book), documents(*({"model": f"m{n % 4}"} for n in range(20)))
    )
    assert {queue: len(some) for queue, some in found.items()} == {
        "penstock.gpu.m0": 5,
        "penstock.gpu.m1": 5,
        "penstock.gpu": 10,
    }
    assert book.noted == [f"penstock.gpu.m{n}" for n in range(4)]


@given(st.binary(max_size=200))
def test_any_body_names_a_model_or_none(body: bytes) -> None:
    """What is not a JSON object with a model names none."""
    assert model_of(body) is None or json.loads(body)["model"]


# -- what workers say ------------------------------------------------------------------------------

FULL = Served(("/models/tiny1", "tiny1"), ("legal",), 4096, "bfloat16")


def test_what_a_worker_says_is_read_back() -> None:
    """Model, other names, adapters, context and dtype travel in the heartbeat."""
    assert Served.read(FULL.to_text()) == FULL
    assert FULL.queues("gpu")[1:] == ["penstock.gpu.tiny1", "penstock.gpu.legal"]
    assert FULL.home("gpu") == FULL.queues("gpu")[0]


def test_what_a_model_does_is_said_and_shown() -> None:
    """Its tasks travel in the heartbeat, a bounded number of them, and stand beside its name."""
    ranker = Served(("ranker",), tasks=("rerank", "score", "classify"))
    assert Served.read(ranker.to_text()) == ranker
    assert Serving("embed", (ranker,)).in_words() == "ranker (1 worker: rerank, score, classify)"
    found = Served.read(Served(("m",), tasks=("x",) * 100).to_text())
    assert found is not None
    assert len(found.tasks) == TASKS_MAX


def test_adapters_are_named_with_their_model() -> None:
    """Those of all its workers, a bounded number of them (H7)."""
    two = Served(("m",), ("b", "a")), Served(("m",), ("c",))
    assert Serving("gpu", two).in_words() == "m (2 workers; adapters a, b, c)"
    many = Served(("m",), tuple(map(str, range(10, 22))))
    assert Serving("gpu", (many,)).in_words().endswith("16, 17 and 4 more)")


def test_what_a_worker_says_is_bounded() -> None:
    """A worker with very many adapters announces as many as fit, and is read all the same."""
    many = Served(("m",), tuple(f"{number:0500}" for number in range(NAMES_MAX)))
    assert len(many.to_text()) <= TEXT_BYTES
    found = Served.read(many.to_text())
    assert found is not None
    assert 0 < len(found.adapters) < NAMES_MAX


@given(
    st.one_of(
        st.none(), st.text(max_size=300), st.dictionaries(st.text(), st.integers()).map(json.dumps)
    )
)
def test_whatever_stands_there_is_read_or_passed_over(text: str | None) -> None:
    """Anyone who reaches Redis may write heartbeats."""
    found = Served.read(text)
    assert found is None or found.names


def seen(name: str, served: Served | None, ago: float = 0.0, lane: str = "gpu") -> WorkerSeen:
    return WorkerSeen(
        name, ago, {"lane": lane, **({} if served is None else {SERVES: served.to_text()})}
    )


TWO = [seen("a", FULL), seen("b", Served(("/mnt/tiny1", "tiny1"))), seen("c", Served(("tiny2",)))]


def test_the_fleet_is_put_into_words() -> None:
    """Workers that share a name serve one model; the silent, and those of other lanes, serve
    nothing."""
    fleet = serving_of(
        [*TWO, seen("d", Served(("old",)), ago=20), seen("e", Served(("m",)), lane="embed")], "gpu"
    )
    assert fleet.in_words() == "tiny1 (2 workers; adapters legal), tiny2 (1 worker)"
    assert fleet.serves("legal")
    assert missing_model(fleet, "legal") is None
    words = "tiny1 (2 workers; adapters legal), tiny2 (1 worker)"
    assert missing_model(fleet, "old") == MissingModel("old", None, False, words)
    assert missing_model(fleet, None, "penstock.gpu.tiny2") is None
    gone = "penstock.gpu.gone"
    assert missing_model(fleet, None, gone) == MissingModel(None, gone, False, words)
    assert missing_model(Serving("gpu", ()), "old") is None, (
        "that no worker lives is another sentence"
    )


def test_queues_that_no_worker_takes_from_are_found() -> None:
    """Those of models in which something waits; the lane's own is any worker's."""
    fleet = serving_of(TWO, "gpu")
    waiting = {
        "penstock.gpu": 4,
        "penstock.gpu.tiny2": 3,
        "penstock.gpu.x": 2,
        "penstock.gpu.empty": 0,
    }
    assert unserved_queues(fleet, waiting) == ["penstock.gpu.x"]


# -- what a worker consumes ------------------------------------------------------------------------


def test_a_worker_takes_from_the_queues_of_all_names_of_its_model_and_from_the_lanes() -> None:
    """And it keeps what it holds under the name of the model that it hosts, where an autoscaler
    counts it."""
    gpu = {"model": "org/tiny1", "names": ["mine"], "lora": {"legal": "/adapters/legal"}}
    settings = WorkerSettings.load(lane="gpu", gpu=gpu)
    app = create_app(settings, lambda *_: None)  # type: ignore[arg-type]  # no engine is built here
    queues = [queue.name for queue in app.conf.task_queues]
    assert queues[0] == FIRST
    assert queues[1:] == [
        *model_queues("gpu", ["org/tiny1", "tiny1", "mine", "legal"]),
        "penstock.gpu",
    ]
    assert home_queue(settings) == queue_name("gpu", "org/tiny1")
    held = keys.unacked(home_queue(settings))
    assert app.conf.broker_transport_options["unacked_key"] == held
    assert home_queue(WorkerSettings.load(lane="api")) == "penstock.api"


def test_a_worker_has_no_more_names_than_it_can_look_for() -> None:
    """Each is a queue that is looked into at every claim."""
    lora = {f"a{number}": "/a" for number in range(NAMES_MAX)}
    with pytest.raises(TooManyNames, match="at most 256"):
        home_queue(WorkerSettings.load(lane="gpu", gpu={"model": "tiny1", "lora": lora}))


def test_queues_take_turns_and_jobs_come_first() -> None:
    """The queue that was served last comes last; that of jobs is always looked into first; turns
    outlive a change of queues."""
    order = QueueOrder(["a", FIRST, "b", "c"])
    assert order.consume(9) == [FIRST, "a", "b", "c"]
    order.rotate("a")
    order.rotate(FIRST)
    assert order.consume(9) == [FIRST, "b", "c", "a"]
    order.update([FIRST, "a", "c", "d"])
    assert order.consume(2) == [FIRST, "c"]
    assert order.consume(9) == [FIRST, "c", "a", "d"]
