"""Fleets on Redis with TLS and users, and on a Redis that fails over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, until
from redis_sets import SERVICE, SentinelSet, TlsRedis

from penstock_cli.doctor import checks
from penstock_cli.doctor.worker import Verdict
from penstock_ledger.model import JobState

pytestmark = pytest.mark.servers

DOCUMENTS = 300


@pytest.fixture
def tls_redis(tmp_path: Path) -> Iterator[TlsRedis]:
    server = TlsRedis.start_tls(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    group = SentinelSet.start(tmp_path / "redis")
    yield group
    group.stop()


def run_a_job(fleet: Fleet, **settings: Any) -> None:
    """To its end, with what an operator looks at on the way."""
    fleet.provider.start("--latency-ms", "50")
    workers = [fleet.worker(8, control=True, **settings) for _ in range(2)]
    fleet.ready(*workers)
    job = fleet.submit(DOCUMENTS)
    fleet.wait_for(job, JobState.COMPLETED, 60)
    account = fleet.account(job, DOCUMENTS)
    assert (account.dead, account.extra_calls) == ({}, 0)
    assert "completed" in fleet.penstock("status", job.job_id)
    assert "default" in fleet.penstock("limits")


@pytest.mark.parametrize("transport", ["penstock", "redis"])
def test_a_job_over_tls_as_a_user_of_few_rights(
    tmp_path: Path, tls_redis: TlsRedis, transport: str
) -> None:
    """Every client of Penstock checks the server's certificate, logs in, and needs no more than the
    documented ACL allows."""
    with Fleet(tmp_path / "fleet", redis=tls_redis) as fleet:
        run_a_job(fleet, broker_transport=transport)
        denied = [entry for entry in fleet.processes if "NOPERM" in entry.log.read_text()]
        assert denied == []


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_redis: TlsRedis) -> None:
    """Without the CA the doctor says what is wrong, and no password is sent."""
    findings = list(checks._redis(tls_redis.url.partition("?")[0], private=False))
    assert [finding.verdict for finding in findings] == [Verdict.BAD]
    assert "certificate verify failed" in findings[0].seen
    assert all(
        finding.verdict is not Verdict.BAD
        for finding in checks._redis(tls_redis.url, private=False)
    )


def test_a_job_goes_on_through_a_failover(tmp_path: Path, sentinels: SentinelSet) -> None:
    """The master is killed for good: the fleet follows to its replica, and each document has one
    result."""
    with Fleet(tmp_path / "fleet", redis=sentinels) as fleet:
        fleet.provider.start("--latency-ms", "300")
        workers = [fleet.worker(8, control=True) for _ in range(2)]
        fleet.ready(*workers)
        job = fleet.submit(DOCUMENTS)
        fleet.wait_for_outcomes(job, DOCUMENTS // 4)
        old = sentinels.master()
        old.kill()
        # what was held may still be settled
        killed, before = (time.monotonic(), fleet.finished(job) + 2 * 2 * 8)
        until(lambda: fleet.finished(job) > before, 60, "the fleet goes on with the replica")
        pause_s = time.monotonic() - killed
        fleet.wait_for(job, JobState.COMPLETED, 90)
        account = fleet.account(job, DOCUMENTS)
        print(
            f"failover: going on after {pause_s:.1f} s, {account.extra_calls} of {DOCUMENTS} calls "
            "twice"
        )
        assert sentinels.master() is not old
        assert account.dead == {}
        assert account.extra_calls <= 2 * 2 * 8
        assert all(worker.alive for worker in workers)


def test_a_job_with_sentinels_over_the_stock_transport(
    tmp_path: Path, sentinels: SentinelSet
) -> None:
    """kombu's own Sentinel transport gets the same address in its own words."""
    with Fleet(tmp_path / "fleet", redis=sentinels) as fleet:
        run_a_job(fleet, broker_transport="redis")


def test_doctor_explains_sentinels(sentinels: SentinelSet) -> None:
    """It names the master, the replicas, a Sentinel that is away, and a service that no Sentinel
    watches."""
    good = [
        finding
        for finding in checks._redis(sentinels.url, private=False)
        if finding.subject == "sentinel"
    ]
    assert [finding.verdict for finding in good] == [Verdict.GOOD]
    assert (
        f"'{SERVICE}' is 127.0.0.1:{sentinels.master().port}, 1 replicas, quorum 2" in good[0].seen
    )
    sentinels.sentinels[2].kill()
    sentinels.sentinels[2].wait()
    away = [
        finding
        for finding in checks._redis(sentinels.url, private=False)
        if finding.subject == "sentinel"
    ]
    assert [finding.verdict for finding in away] == [Verdict.WARNING, Verdict.GOOD]
    assert str(sentinels.ports[2]) in away[0].seen
    wrong = list(checks._redis(sentinels.url.replace(f"={SERVICE}", "=unwatched"), private=False))
    assert f"watches no 'unwatched', only {SERVICE}" in wrong[0].seen
