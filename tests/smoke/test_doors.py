"""The ways in that other services use, through a running worker.

One fleet serves all tests of this module."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from fleet import Fleet, until

from penstock_ledger import JobNotFound, keys
from penstock_ledger.model import Job, JobState


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("doors")
    with Fleet(folder, settings={"source_roots": f'["{folder}/sources"]'}) as fleet:
        fleet.provider.start("--latency-ms", "5")
        fleet.ready(fleet.worker(control=True, result_backend_url=fleet.redis.url))
        yield fleet


def found(fleet: Fleet, key: str) -> Job | None:
    try:
        return fleet.producer.status(key).job
    except JobNotFound:
        return None


def test_a_plain_celery_client_submits_a_job(fleet: Fleet) -> None:
    """`send_task("penstock.submit", …)` from an app without Penstock installed is one job, however
    often it is sent."""
    with fleet.explained():
        client = Celery("another-service", broker=fleet.redis.url, set_as_current=False)
        order = [str(fleet.source(20, "night")), {"prompt": "Summarise: {text}", "model": "m"}]
        for _ in range(3):
            client.send_task(
                "penstock.submit", args=order, kwargs={"job_key": "night"}, queue="penstock.control"
            )
        until(lambda: found(fleet, "night"), 30, "the job is accepted")
        job = found(fleet, "night")
        assert job is not None
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, 20).extra_calls == 0


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Celery]:
    """An app that imports nothing of Penstock, and hears what becomes of its tasks."""
    with Celery(
        "another-service", broker=fleet.redis.url, backend=fleet.redis.url, set_as_current=False
    ) as client:
        client.conf.task_default_queue = "penstock.control"
        yield client
        # results that a raised error still holds take their leave of Redis, which is about to end
        gc.collect()


def refusal_of(client: Celery, name: str, *args: Any, **kwargs: Any) -> str:
    """What the sender hears of a task that is refused."""
    # Celery makes the class anew, by its name
    with pytest.raises(Exception, match=r".") as refused:
        client.send_task(name, args=args, kwargs=kwargs).get(timeout=30)
    assert type(refused.value).__name__ == "DoorRefused"
    return str(refused.value)


def test_a_refused_task_is_told_to_its_sender_and_listed(fleet: Fleet, client: Celery) -> None:
    """Each bad task fails with its reason in the sender's result and in `penstock refused`, without
    content of a file or of the spec (B2, B16, D29)."""
    rows = fleet.sources / "rows.jsonl"
    rows.write_text('{"password": "hunter2"}\n' * 3)
    spec = {"prompt": "{text}", "model": "m"}
    with fleet.explained():
        heard = [
            refusal_of(client, "penstock.submit", "/proc/self/environ", spec),
            refusal_of(client, "penstock.submit", str(rows), spec, job_key="leaky"),
            refusal_of(client, "penstock.submit", str(rows), {"prompt": "hunter2 {", "model": "m"}),
            refusal_of(
                client,
                "penstock.submit",
                str(rows),
                spec | {"preprocess": "logging:setLogRecordFactory"},
            ),
            refusal_of(client, "penstock.submit", str(rows)),
            refusal_of(client, "penstock.enqueue", "no-such-job", "a", {"text": "hunter2"}),
        ]
    wanted = [
        "source_roots",
        "missing_required_parameter (id) in line 1",
        "/prompt",
        "hook_modules",
        "missing a required",
        "no-such-job",
    ]
    assert [word for word, text in zip(wanted, heard, strict=True) if word not in text] == []
    listed = fleet.penstock("refused")
    assert "hunter2" not in "".join(heard) + listed
    assert "leaky" in listed
    assert all(word in listed for word in wanted[:4])


def test_rejected_tasks_are_logged_without_their_arguments(fleet: Fleet, client: Celery) -> None:
    """A task that no worker knows, and one with an impossible time, are kept aside; no log shows
    what they carried (B16)."""
    sent = [
        client.send_task("penstock.sbumit", args=["hunter2"], kwargs={"spec": "hunter2"}),
        client.send_task("penstock.submit", args=["hunter2"], headers={"eta": "never"}),
    ]
    with fleet.explained():
        until(lambda: all(parked(fleet, task.id) for task in sent), 30, "they are kept aside")
    logged = "".join(process.log.read_text() for process in fleet.processes)
    assert "penstock.sbumit" in logged
    assert "hunter2" not in logged


@contextlib.contextmanager
def listening(client: Celery) -> Iterator[list[dict[str, Any]]]:
    """All events of the fleet, as Flower hears them, from the first answer of a worker on."""
    heard: list[dict[str, Any]] = []
    with client.connection() as connection:
        receiver = client.events.Receiver(connection, handlers={"*": heard.append})

        def listen() -> None:
            with contextlib.suppress(OSError):
                receiver.capture(limit=None, timeout=None, wakeup=False)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        client.control.enable_events(reply=True)
        yield heard
        receiver.should_stop = True
        thread.join(5)


def test_events_of_a_refused_task_hold_no_content(fleet: Fleet, client: Celery) -> None:
    """What Flower hears of a task (received, started, failed) shows neither its arguments nor rows
    of its source (B16)."""
    rows = fleet.sources / "secrets.jsonl"
    rows.write_text('{"password": "hunter2"}\n')
    with fleet.explained(), listening(client) as heard:
        sent = client.send_task(
            "penstock.submit", args=[str(rows), {"prompt": "hunter2 {x}", "model": "m"}]
        )
        wanted = {"task-received", "task-started", "task-failed"}
        until(
            lambda: (
                wanted <= {event["type"] for event in list(heard) if event.get("uuid") == sent.id}
            ),
            30,
            "events",
        )
    assert "hunter2" not in repr(heard)
    failed = next(event for event in heard if event["type"] == "task-failed")
    assert "too_many_bad_rows" in failed["exception"]


def test_documents_are_pushed_by_a_celery_client(fleet: Fleet, client: Celery) -> None:
    """A service with Celery alone opens a job, pushes documents one by one, twice without harm, and
    closes it (D29)."""
    with fleet.explained():
        spec = {"prompt": "Summarise: {text}", "model": "m"}
        job_id = client.send_task(
            "penstock.open_job", args=[spec], kwargs={"job_key": "pushed"}
        ).get(timeout=30)
        again = client.send_task(
            "penstock.open_job", args=[spec], kwargs={"job_key": "pushed"}
        ).get(timeout=30)
        assert again == job_id
        sent = [
            client.send_task("penstock.enqueue", args=["pushed", f"d{number % 5}", {"text": "t"}])
            for number in range(10)
        ]
        assert sorted(task.get(timeout=30) for task in sent) == [False] * 5 + [True] * 5
        other = refusal_of(client, "penstock.enqueue", "pushed", "d1", {"text": "another"})
        assert "'d1'" in other
        assert client.send_task("penstock.close_job", args=["pushed"]).get(timeout=30) == 5
        job = fleet.producer.status("pushed").job
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, {f"d{n}" for n in range(5)}).extra_calls == 0


def test_strangers_push_into_their_own_jobs_only(fleet: Fleet, client: Celery) -> None:
    """A job that a service with the database opened takes no documents from remote doors, by
    default (B2)."""
    with fleet.explained():
        opened = fleet.producer.open_job(fleet.spec(), job_key="ours")
        assert "doors.push_into" in refusal_of(
            client, "penstock.enqueue", "ours", "a", {"text": "t"}
        )
        assert "doors.push_into" in refusal_of(client, "penstock.close_job", "ours")
        assert opened.close() == 0


def test_the_examples_of_the_page_run(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """What docs/doors.md tells a service to send is accepted as it stands, and worked on (D29)."""
    page = (Path(__file__).parents[2] / "docs/doors.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    source = fleet.source(4, "example")
    code = code.replace("redis://redis:6379/0", fleet.redis.url).replace(
        "s3://corpora/tickets.jsonl", str(source)
    )
    with fleet.explained():
        exec(compile(code, "docs/doors.md", "exec"), {})
        assert capsys.readouterr().out.startswith("job_")
        for key in ("tickets-2026-11-21", "tickets-live"):
            fleet.wait_for(fleet.producer.status(key).job, JobState.COMPLETED, 60)


def parked(fleet: Fleet, task_id: str) -> bool:
    kept: Any = fleet.redis.client().lrange("penstock:parked:unknown", 0, -1)
    return any(task_id.encode() in raw for raw in kept)


def test_a_task_of_many_megabytes_is_kept_aside_unread(fleet: Fleet, client: Celery) -> None:
    """Arguments above the limit are parked before they are parsed, and the worker goes on (B8)."""
    with fleet.explained():
        sent = client.send_task("penstock.submit", args=["x" * 9_000_000, {}])
        until(lambda: parked(fleet, sent.id), 30, "it is kept aside")
        assert "source_roots" in refusal_of(client, "penstock.submit", "/etc/passwd", {})


def test_a_task_that_kills_its_processes_is_parked(fleet: Fleet, client: Celery) -> None:
    """A task that took three processes with it is not begun again: its sender hears why, and its
    message is kept (B8)."""
    task_id = "the-poison"
    with fleet.explained():
        # as three processes that died have left it
        fleet.redis.client().set(keys.door_starts(task_id), 3)
        source = str(fleet.source(3, "poison"))
        sent = client.send_task("penstock.submit", args=[source, fleet.spec()], task_id=task_id)
        with pytest.raises(Exception, match=r"died 3 times.*doors\.max_crashes"):
            sent.get(timeout=30)
        until(lambda: parked(fleet, task_id), 30, "it is kept aside")
        assert "parked" in fleet.penstock("refused")


def test_documents_pushed_one_by_one_become_results(fleet: Fleet) -> None:
    """An open job is worked on while it is filled, and ends when it is closed."""
    with fleet.explained():
        with fleet.producer.open_job(fleet.spec(), job_key="live") as live:
            for number in range(10):
                live.enqueue(f"early-{number}", {"text": "one"})
            live.flush()
            fleet.wait_for_outcomes(live.job, 10)
            for number in range(10):
                live.enqueue(f"late-{number}", {"text": "two"})
            assert live.close() == 20
        fleet.wait_for(live.job, JobState.COMPLETED, 60)
        names = {f"{when}-{number}" for when in ("early", "late") for number in range(10)}
        assert fleet.account(live.job, names).extra_calls == 0


def test_large_documents_travel_by_reference(fleet: Fleet, tmp_path: Path) -> None:
    """A body above 16 KiB is read again from the source by the worker, and answered like any
    other."""
    path = tmp_path / "large.jsonl"
    path.write_text("".join(f'{{"id": "d{n}", "text": "{"word " * 8_000}"}}\n' for n in range(5)))
    with fleet.explained():
        job = fleet.producer.submit(path, fleet.spec())
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert fleet.account(job, {f"d{n}" for n in range(5)}).extra_calls == 0


@pytest.mark.parametrize(
    "message", ["not json", '{"body": "W10=", "headers": {}, "properties": {}}']
)
def test_rubbish_in_the_queue_stops_nobody(fleet: Fleet, message: str) -> None:
    """A message that no worker can read is kept aside, and the documents behind it are answered."""
    with fleet.explained():
        fleet.redis.client().lpush("penstock.api", message)
        job = fleet.submit(10, key=f"behind {len(message)}")
        fleet.wait_for(job, JobState.COMPLETED, 60)
        assert message.encode() in fleet.redis.client().lrange("penstock:parked:unknown", 0, -1)


def test_a_job_for_a_provider_that_workers_lack_is_paused(fleet: Fleet) -> None:
    """Nothing is lost and nothing spins: the job waits, and its reason names the provider and the
    fix."""
    with fleet.explained():
        job = fleet.submit(5, key="elsewhere", provider="elsewhere")
        fleet.wait_for(job, JobState.PAUSED, 30)
        reason = fleet.producer.status(job.job_id).job.reason or ""
        assert "'elsewhere' is not configured" in reason
        assert "[providers.elsewhere]" in reason


def test_an_item_of_an_unknown_job_is_kept_aside(fleet: Fleet) -> None:
    """A well-formed item message whose job no ledger knows is put aside whole: nothing is dropped
    in silence."""
    from penstock_ledger.model import ItemKey
    from penstock_producer.feed.wire import encode_item

    raw = encode_item(
        ItemKey("job_of_nobody", 1, "doc"), queue="penstock.api", body=b"{}", ref=None
    )
    with fleet.explained():
        client = fleet.redis.client()
        client.lpush("penstock.api", raw)
        until(lambda: parked(fleet, "job_of_nobody"), 30, "kept")
