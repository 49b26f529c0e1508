"""Whole fleets with RabbitMQ as the broker, and what is done to it, to them and to their Redis in
the middle of a job."""

from __future__ import annotations

import base64
import json
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from fleet import Fleet, Process, until
from kombu.entity import Queue
from servers import free_port
from stores.rabbit import PASSWORD, RabbitServer

from penstock_cli.doctor.fleet import rabbitmq
from penstock_cli.doctor.worker import Verdict
from penstock_ledger import JobNotFound, keys
from penstock_ledger.model import Job, JobState
from penstock_producer.reporting.reasons import retries
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.broker.amqp.connect import AMQP_ERRORS, Publisher, connect
from penstock_workers.celery_app.app import create_app
from penstock_workers.settings import WorkerSettings

pytestmark = pytest.mark.servers

DOCUMENTS = 300
SLOTS = 8
QUEUE = "penstock.api"


@pytest.fixture(scope="module")
def _rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    server = RabbitServer.start(tmp_path_factory.mktemp("rabbit") / "node")
    yield server
    server.stop()


@pytest.fixture
def rabbit(_rabbit: RabbitServer) -> RabbitServer:
    """A node with empty queues, shared by the tests of this file; one may kill it if it starts it
    again."""
    with _rabbit.channel() as channel:
        for queue in (QUEUE, "penstock.control"):
            channel.queue_delete(queue)
    return _rabbit


@pytest.fixture
def fleet(tmp_path: Path, rabbit: RabbitServer) -> Iterator[Fleet]:
    with Fleet(
        tmp_path / "fleet",
        settings={"broker_url": rabbit.url, "source_roots": f'["{tmp_path}/fleet/sources"]'},
    ) as started:
        yield started
        started.print_tails()  # pytest shows it when the test has failed


def start(fleet: Fleet, latency_ms: int = 100) -> tuple[Process, list[Process]]:
    """A provider, a control process and two workers."""
    fleet.provider.start("--latency-ms", str(latency_ms))
    control = fleet.control()
    workers = [fleet.worker(SLOTS) for _ in range(2)]
    fleet.ready(*workers)
    return control, workers


def finish(fleet: Fleet, job: Job, *, extra_calls: int = 0, timeout_s: float = 60) -> None:
    fleet.wait_for(job, JobState.COMPLETED, timeout_s)
    account = fleet.account(job, DOCUMENTS)
    assert account.dead == {}
    assert account.extra_calls <= extra_calls
    client: Any = fleet.redis.client()
    until(lambda: client.zcard(keys.relayed(QUEUE)) == 0, 20, "nothing counts as lying in RabbitMQ")


def known(fleet: Fleet, key: str) -> bool:
    try:
        fleet.producer.status(key)
    except JobNotFound:
        return False
    return True


def test_a_job_through_rabbitmq(fleet: Fleet, rabbit: RabbitServer) -> None:
    """Each document goes through the quorum queue to a worker once, and nothing is left in either
    broker."""
    start(fleet)
    job = fleet.submit(DOCUMENTS)
    with rabbit.channel() as channel:
        until(
            lambda: channel.queue_declare(QUEUE, passive=True).consumer_count == 2,
            20,
            "both workers consume there",
        )
    finish(fleet, job)
    assert rabbit.ready(QUEUE) == 0
    assert "completed" in fleet.penstock("status", job.job_id)


def test_a_job_over_tls(tmp_path: Path, rabbit: RabbitServer) -> None:
    """Workers and shovel check the certificate; without its CA the doctor says what is wrong."""
    (finding,) = rabbitmq(rabbit.tls_url.partition("?")[0])
    assert finding.verdict is Verdict.BAD
    assert "certificate verify failed" in finding.seen
    with Fleet(tmp_path / "fleet", settings={"broker_url": rabbit.tls_url}) as fleet:
        start(fleet)
        finish(fleet, fleet.submit(DOCUMENTS))
        assert "quorum queues can be declared" in fleet.penstock("doctor")


def under_way(fleet: Fleet) -> Job:
    """A job of which a quarter is done."""
    job = fleet.submit(DOCUMENTS)
    fleet.wait_for_outcomes(job, DOCUMENTS // 4)
    return job


def test_a_worker_is_killed(fleet: Fleet) -> None:
    """What it held returns by its lease; only what it had in flight, or had not settled, is paid
    twice."""
    _, workers = start(fleet, latency_ms=400)
    job = under_way(fleet)
    workers[0].kill()
    finish(fleet, job, extra_calls=2 * SLOTS)


def test_rabbitmq_dies_and_comes_back(fleet: Fleet, rabbit: RabbitServer) -> None:
    """Messages wait, what is in flight goes on, workers connect again, and no call is made
    twice."""
    control, workers = start(fleet)
    job = under_way(fleet)
    rabbit.kill()
    until(
        lambda: "messages cannot go to RabbitMQ" in control.log.read_text(),
        30,
        "the shovel has noticed",
    )
    assert all(worker.alive for worker in workers)
    rabbit.restart()
    finish(fleet, job)


def test_the_queue_is_purged(fleet: Fleet, rabbit: RabbitServer) -> None:
    """What was in it is missed, put back and sent again."""
    start(fleet, latency_ms=300)
    job = under_way(fleet)
    until(lambda: rabbit.purge(QUEUE) > 0, 20, "there was something to purge")
    finish(fleet, job)
    assert "RabbitMQ has lost" in fleet.processes[0].log.read_text()


def test_the_queue_is_deleted(fleet: Fleet, rabbit: RabbitServer) -> None:
    """The shovel declares it anew, workers consume it again, and what was in it is sent again."""
    start(fleet)
    job = under_way(fleet)
    with rabbit.channel() as channel:
        channel.queue_delete(QUEUE)
    finish(fleet, job)


def test_the_control_process_is_killed(fleet: Fleet) -> None:
    """Another one's shovel takes over; what the first was moving comes back when its lease ends,
    and is done once."""
    control, _ = start(fleet)
    job = under_way(fleet)
    control.kill()
    fleet.control()
    finish(fleet, job)


def test_redis_forgets(fleet: Fleet, rabbit: RabbitServer) -> None:
    """After FLUSHALL the messages in RabbitMQ are copies without an original: they are dropped, and
    fed anew."""
    start(fleet, latency_ms=300)
    job = under_way(fleet)
    fleet.redis.flush()
    finish(fleet, job, extra_calls=2 * 2 * SLOTS)


def test_redis_dies_and_comes_back(fleet: Fleet) -> None:
    """What RabbitMQ delivers meanwhile waits until it can be taken."""
    control, workers = start(fleet)
    job = under_way(fleet)
    fleet.redis.kill()
    until(lambda: "next look in" in control.log.read_text(), 30, "the control loop has noticed")
    fleet.redis.restart()
    finish(fleet, job, extra_calls=2 * 2 * SLOTS)
    assert all(worker.alive for worker in workers)


def test_a_worker_that_is_told_to_end_gives_everything_back(
    fleet: Fleet, rabbit: RabbitServer
) -> None:
    """SIGTERM with work in flight and no time to finish it: nothing waits for a lease to end."""
    fleet.provider.start("--latency-ms", "20000")
    fleet.control()
    worker = fleet.worker(SLOTS, drain_seconds=0.5, visibility_timeout_s=60)
    fleet.ready(worker)
    job = fleet.submit(DOCUMENTS)
    until(lambda: fleet.provider.in_flight() == SLOTS, 20, "all slots are in use")
    worker.send(signal.SIGTERM)
    assert worker.wait(15) == 0
    client: Any = fleet.redis.client()
    until(
        lambda: fleet.depths(job)["unacked"] == client.zcard(keys.relayed(QUEUE)),
        5,
        "no consumer holds a message",
    )
    until(
        lambda: rabbit.ready(QUEUE) >= client.zcard(keys.relayed(QUEUE)) > 0,
        10,
        "all that is relayed is ready",
    )


def test_retries_wait_and_come_back(fleet: Fleet) -> None:
    """A provider that fails now and then: retries wait in Redis, and go through RabbitMQ once
    more."""
    fleet.provider.start("--latency-ms", "50", "--error-rate", "0.2")
    fleet.control()
    workers = [fleet.worker(SLOTS) for _ in range(2)]
    fleet.ready(*workers)
    job = fleet.submit(DOCUMENTS, max_attempts=12)
    finish(fleet, job, extra_calls=DOCUMENTS)
    assert retries(fleet.counters(job)) > 0


def test_urgent_documents_pass_the_others(fleet: Fleet) -> None:
    """A job of high priority waits behind what lies in RabbitMQ already, not behind the list."""
    start(fleet, latency_ms=300)
    routine = fleet.submit(2_000, key="routine")
    fleet.wait_for_outcomes(routine, 30)
    urgent = fleet.submit(20, key="urgent", priority="urgent")
    fleet.wait_for(urgent, JobState.COMPLETED, 30)
    assert fleet.finished(routine) < 1_000


def test_a_stock_celery_client_submits_a_job(fleet: Fleet, rabbit: RabbitServer) -> None:
    """`send_task` to RabbitMQ, by a client that knows nothing of Redis, is a job as on Redis."""
    start(fleet)
    source = fleet.source(DOCUMENTS)
    with Celery(broker=rabbit.url) as client:
        queue = Queue(
            "penstock.control",
            routing_key="penstock.control",
            queue_arguments={"x-queue-type": "quorum"},
        )
        client.conf.update(task_queues=[queue], task_default_queue="penstock.control")
        client.send_task(
            "penstock.submit", args=[str(source), fleet.spec()], kwargs={"job_key": "from-celery"}
        )
    until(lambda: known(fleet, "from-celery"), 20, "the job is there")
    finish(fleet, fleet.producer.status("from-celery").job)


def test_switching_a_running_fleet_there_and_back(tmp_path: Path, rabbit: RabbitServer) -> None:
    """Processes are replaced one by one with the other setting, in the middle of a job: nothing is
    lost, or paid twice."""
    with Fleet(tmp_path / "fleet") as fleet:
        fleet.provider.start("--latency-ms", "200")
        job_processes = [fleet.control(), fleet.worker(SLOTS)]
        fleet.ready(job_processes[1])
        job = fleet.submit(DOCUMENTS)
        for number, url in enumerate((rabbit.url, "")):
            fleet.wait_for_outcomes(job, (number + 1) * DOCUMENTS // 6)
            started = [fleet.control(broker_url=url), fleet.worker(SLOTS, broker_url=url)]
            fleet.ready(started[1])
            for process in job_processes:
                process.send(signal.SIGTERM)
                assert process.wait(40) == 0
            job_processes = started
        finish(fleet, job)


def test_flower_and_inspect_over_rabbitmq(fleet: Fleet, rabbit: RabbitServer) -> None:
    """Events and control commands go through RabbitMQ, the broker page counts what Redis knows; no
    password is shown."""
    port = free_port()
    login = {"flower__auth": "me:open-sesame", "flower__port": port}
    flower = fleet.command("flower", "flower", **login)
    start(fleet)
    until(
        lambda: len(asked(port, "/api/workers?refresh=1") or ()) == 3,
        30,
        "Flower knows all three processes",
    )
    job = fleet.submit(DOCUMENTS)
    fleet.wait_for_outcomes(job, DOCUMENTS // 2)
    queues = {row["name"]: row for row in asked(port, "/api/queues/length")["active_queues"]}
    assert 0 < queues[QUEUE]["messages"] <= DOCUMENTS
    until(
        lambda: len(asked(port, "/api/tasks?limit=1000")) >= DOCUMENTS // 2,
        30,
        "Flower hears of documents",
    )
    finish(fleet, job)
    assert PASSWORD not in str(asked(port, "/api/workers")) + flower.log.read_text()
    app = create_app(WorkerSettings(redis_url=fleet.redis.url, broker_url=rabbit.url))
    inspected = app.control.inspect(timeout=5).stats()
    assert len(inspected) == 3
    assert PASSWORD not in str(inspected)
    assert {found["broker"]["transport"] for found in inspected.values()} == {"penstockamqp"}


def test_the_doctor_on_rabbitmq(fleet: Fleet, rabbit: RabbitServer) -> None:
    """It tries what a fleet needs, leaves nothing behind, and says what to correct: password,
    vhost, address."""
    assert [finding.verdict for finding in rabbitmq(rabbit.url)] == [Verdict.GOOD] * 3
    wrong = {
        "user and password": rabbit.url.replace(quote(PASSWORD, safe=""), "wr0ng"),
        "vhost": rabbit.url.replace("/jobs", "/nowhere"),
        "start it": rabbit.url.replace(str(rabbit.port), str(free_port())),
    }
    for fix, url in wrong.items():
        (finding,) = rabbitmq(url)
        assert finding.verdict is Verdict.BAD
        assert fix in finding.fix, finding
        assert "wr0ng" not in finding.seen
    assert "quorum queues can be declared" in fleet.penstock("doctor")


def test_only_what_rabbitmq_has_counts_as_published(rabbit: RabbitServer) -> None:
    """What is confirmed is in the queue; what found no queue, or was not sent because the
    connection broke, is reported."""
    messages = [(f"job:{number}", b"{}") for number in range(500)]
    broker = connect(AmqpAddress.parse(rabbit.url))
    publisher = Publisher(broker.connection.channel(), QUEUE)
    publisher.publish(messages, timeout_s=10)
    assert publisher.unconfirmed() == {tag for tag, _ in messages}, "there is no such queue yet"
    assert publisher.look().ready == 0
    publisher.publish(messages, timeout_s=10)
    assert (publisher.unconfirmed(), publisher.look().ready) == (set(), 500)
    broker.connection.transport.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(AMQP_ERRORS):
        publisher.publish(messages, timeout_s=10)
    assert publisher.unconfirmed() == {tag for tag, _ in messages}


def test_a_queue_of_another_type_is_named(fleet: Fleet, rabbit: RabbitServer) -> None:
    """A client that declared it before us has made it classic: the shovel says so, and goes on once
    it is deleted."""
    with rabbit.channel() as channel:
        channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        fleet.provider.start()
        control = fleet.control()
        job = fleet.submit(DOCUMENTS)
        until(
            lambda: "refuses the queue penstock.api" in control.log.read_text(),
            30,
            "the log names the queue",
        )
        channel.queue_delete(QUEUE)
    fleet.ready(fleet.worker(SLOTS))
    finish(fleet, job)


def asked(port: int, path: str) -> Any:
    """Flower's answer; None while it has none."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"me:open-sesame").decode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except OSError:
        return None
