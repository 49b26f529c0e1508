"""`penstock doctor` against real servers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from servers import RedisServer, free_port

from penstock_cli.doctor import checks
from penstock_cli.doctor.worker import Finding, Verdict


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def test_a_fit_redis_passes(own_redis: RedisServer) -> None:
    """Version, eviction policy, AOF and clock are each looked at and found well."""
    findings = by_subject(list(checks._redis(own_redis.url, private=False)))
    assert list(findings) == ["redis", "version", "eviction", "aof", "clock"]
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}


def test_an_evicting_redis_without_aof_is_named(tmp_path: Path) -> None:
    """A Redis that may drop keys is bad; one without AOF is a warning; both with the fix."""
    server = RedisServer.start(tmp_path, settings=("--maxmemory", "100mb"))
    try:
        server.client().config_set("maxmemory-policy", "allkeys-lru")
        findings = by_subject(list(checks._redis(server.url, private=False)))
    finally:
        server.stop()
    assert findings["eviction"].verdict is Verdict.BAD
    assert "noeviction" in findings["eviction"].fix
    assert findings["aof"].verdict is Verdict.WARNING


def test_a_silent_redis_is_one_finding_with_the_setting() -> None:
    """No server there: the address without its password, and the setting that names it."""
    findings = list(checks._redis(f"redis://:hunter2@127.0.0.1:{free_port()}/0", private=False))
    assert [finding.verdict for finding in findings] == [Verdict.BAD]
    assert "hunter2" not in findings[0].seen
    assert "PENSTOCK_REDIS_URL" in findings[0].fix


def test_a_wrong_clock_is_bad(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than five seconds apart is named with its direction."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)
    client = own_redis.client(decode_responses=True)
    client.ping()  # to connect is no part of what is measured
    finding = checks._clock(client)
    assert finding.verdict is Verdict.BAD
    said = re.search(r"Redis is ([\d.]+) s behind this machine", finding.seen)
    assert said is not None, finding.seen
    # a busy machine may pause between the looks at both clocks
    assert abs(float(said[1]) - 60) < checks.MAX_CLOCK_SKEW_S
