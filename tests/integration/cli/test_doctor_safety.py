"""What `penstock doctor` refuses, and the repair that it names for each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from machine import simulator
from servers import RedisServer, S3Server

from penstock_cli.doctor import checks
from penstock_cli.doctor import safety as safety_checks
from penstock_cli.doctor.safety import Reach, amqp_safety, database_fix, patched, reach_of
from penstock_cli.doctor.worker import Finding, Verdict
from penstock_cli.server_versions import Software
from penstock_workers.settings import ProviderSettings, WorkerSettings

CANARY = "canary-8f3b1c0d-not-a-known-shape"


def verdicts(findings: Iterator[Finding]) -> dict[str, Verdict]:
    return {finding.subject: finding.verdict for finding in findings}


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("localhost", Reach.HERE),
        ("127.8.9.1", Reach.HERE),
        ("::1", Reach.HERE),
        ("/run/postgresql", Reach.HERE),
        ("10.1.2.3", Reach.PRIVATE),
        ("fd00::7", Reach.PRIVATE),
        ("does-not-resolve.invalid", Reach.PRIVATE),
        ("8.8.8.8", Reach.PUBLIC),
    ],
)
def test_reach(host: str, reach: Reach) -> None:
    """How strict the doctor is depends on who can get at an address (B28)."""
    assert reach_of(host) is reach


def test_old_servers_are_refused() -> None:
    """A server with known holes is refused where others reach it, and is a warning on this machine
    (B12)."""
    found = patched("version", Software("Redis", (7, 4, 2)), Reach.PRIVATE)
    assert (found.verdict, "7.4.11" in found.fix, "--accept version" in found.fix) == (
        Verdict.BAD,
        True,
        True,
    )
    assert patched("version", Software("Redis", (7, 4, 2)), Reach.HERE).verdict is Verdict.WARNING
    assert patched("version", Software("Redis", (7, 4, 11)), Reach.PUBLIC).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("reach", "tls"), [(Reach.PRIVATE, Verdict.WARNING), (Reach.PUBLIC, Verdict.BAD)]
)
def test_an_open_redis_is_refused(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, reach: Reach, tls: Verdict
) -> None:
    """A Redis without a password is refused wherever others reach it; without TLS it is one across
    public addresses (B28)."""
    monkeypatch.setattr(safety_checks, "reach_of", lambda _: reach)
    found = verdicts(checks._redis(own_redis.url, private=False))
    assert (found["access"], found["tls"]) == (Verdict.BAD, tls)
    own_redis.client().config_set("requirepass", CANARY)
    url = own_redis.url.replace("redis://", f"redis://:{CANARY}@")
    assert "access" not in verdicts(checks._redis(url, private=False))


def test_a_wrong_redis_password_has_its_repair(own_redis: RedisServer) -> None:
    """A refused and a missing password are each reported with the setting to correct, and not shown
    (D26)."""
    own_redis.client().config_set("requirepass", "another-one")
    (wrong,) = checks._redis(
        own_redis.url.replace("redis://", f"redis://:{CANARY}@"), private=False
    )
    assert "correct user and password in redis_url" in wrong.fix
    assert CANARY not in wrong.seen
    (missing,) = checks._redis(own_redis.url, private=False)
    assert "redis_url has no password" in missing.fix


def test_rabbitmq_is_looked_at_likewise() -> None:
    """RabbitMQ's example user and plain amqp to other machines are named (B28)."""
    assert verdicts(amqp_safety("amqp://guest:guest@10.1.2.3/")) == {
        "rabbitmq": Verdict.BAD,
        "tls": Verdict.WARNING,
    }
    assert verdicts(amqp_safety("amqp://fleet:pw@8.8.8.8/")) == {"tls": Verdict.BAD}
    assert verdicts(amqp_safety("amqp://guest:guest@127.0.0.1/")) == {}


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            'FATAL:  password authentication failed for user "fleet"',
            "correct user and password in database_url",
        ),
        ('FATAL:  database "nope" does not exist', "createdb"),
        ('FATAL:  role "nope" does not exist', "createuser"),
        ("permission denied for schema public", "GRANT USAGE, CREATE"),
        ("connection refused", "check that it runs"),
    ],
)
def test_database_refusals_have_their_repair(said: str, fix: str) -> None:
    """What PostgreSQL says of a wrong password, database or role is followed by what repairs it
    (D26)."""
    assert fix in database_fix(said)


def test_a_missing_database_is_told(postgres_url: str) -> None:
    """A database that does not exist is reported with the command that creates it (D26)."""
    head, _, tail = postgres_url.partition("?")
    missing = f"{head.rpartition('/')[0]}/nope?{tail}"
    (found,) = checks._database(missing, migrate=False)
    assert (found.verdict, "createdb" in found.fix) == (Verdict.BAD, True)


def test_postgresql_is_looked_at(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PostgreSQL of an old release, or one that is reached without TLS, is named with what to
    write (B28)."""
    assert verdicts(checks._database(postgres_url, migrate=True))["postgresql"] is Verdict.WARNING
    monkeypatch.setattr(safety_checks, "reach_of", lambda _: Reach.PUBLIC)
    found = {finding.subject: finding for finding in checks._database(postgres_url, migrate=False)}
    assert (found["postgresql"].verdict, found["tls"].verdict) == (Verdict.BAD, Verdict.BAD)
    assert "sslmode=verify-full" in found["tls"].fix


@contextmanager
def answering(status: int) -> Iterator[str]:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            said = f"you sent {self.headers.get('Authorization')}\x1b[2J".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            """Not into the test's output."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
        assert asked == ["/v1/models"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "verdict", "fix"),
    [
        (200, Verdict.GOOD, ""),
        (401, Verdict.BAD, "correct the key in SOME_KEY"),
        (302, Verdict.BAD, "redirects are not followed"),
        (404, Verdict.WARNING, "/v1"),
        (503, Verdict.WARNING, "status page"),
    ],
)
def test_providers_are_asked(
    status: int, verdict: Verdict, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that refuses the key is found by the doctor and not by the job, and its echo of
    the key is hidden (D26)."""
    monkeypatch.setenv("SOME_KEY", CANARY)
    for name in checks_of_proxies():
        monkeypatch.delenv(name, raising=False)
    with answering(status) as url:
        (found,) = of_provider(ProviderSettings(base_url=url, api_key_env="SOME_KEY"))
    assert (found.verdict, fix in found.fix) == (verdict, True)
    assert "\x1b" not in found.seen


def of_provider(settings: ProviderSettings) -> list[Finding]:
    return list(checks._lanes(WorkerSettings(providers={"mine": settings}), knock=True))


def checks_of_proxies() -> list[str]:
    return ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"]


def test_keys_over_http_and_proxies_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key over plain http is refused, and a proxy that calls would not take is named (B28)."""
    monkeypatch.setenv("SOME_KEY", CANARY)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    (found,) = of_provider(ProviderSettings(base_url="http://10.1.2.3/v1", api_key_env="SOME_KEY"))
    assert (found.verdict, "allow_plain_http" in found.seen) == (Verdict.BAD, True)
    told = of_provider(ProviderSettings(base_url="http://127.0.0.1:9/v1"))
    assert [finding.subject for finding in told] == ["proxy", "provider"]
    assert "HTTPS_PROXY" in told[0].seen


@pytest.mark.parametrize("place", ["file:///results", "/proc/results"])
def test_results_that_cannot_be_written_are_refused(place: str) -> None:
    """A results_url that cannot be written is refused before the first job ends (H13)."""
    found = checks._results(place, None)
    assert (found.verdict, "results_url" in found.fix) == (Verdict.BAD, True)


def test_a_bucket_for_parts_is_tried_with_all_that_they_need(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `results_parts` reading, listing and deleting are tried as well, and whether writes can
    have conditions."""
    for name, value in (
        ("ACCESS_KEY_ID", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    client = s3_server.client()
    client.create_bucket(Bucket="doctors-parts")
    found = checks._results("s3://doctors-parts/out", s3_server.url, parts=True)
    assert found.verdict is Verdict.GOOD
    assert found.seen.endswith(
        "can be written, read, listed and deleted in, with conditional writes"
    )
    assert "Contents" not in client.list_objects_v2(Bucket="doctors-parts")


def test_what_is_accepted_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--accept` turns the refusal of one subject into a warning, and no finding shows a secret
    (B17)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_TOKEN", CANARY)
    monkeypatch.setattr(
        checks, "_disk", lambda _: Finding(Verdict.BAD, "disk", f"full of {CANARY}")
    )
    monkeypatch.setattr(checks, "_redis", lambda *_, **__: iter(()))
    found = {one.subject: one for one in checks.examine(None, knock=False, accept=["disk"])}
    assert found["disk"] == Finding(Verdict.WARNING, "disk", "full of [redacted]")
    assert {one.subject: one for one in checks.examine(None, knock=False)}[
        "disk"
    ].verdict is Verdict.BAD


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("/metrics", "has the server's figures"),
        ("/stats", "the page has none of "),
        ("/gone", "it answers 404"),
    ],
)
def test_the_figures_of_a_server_are_read(
    page: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that cannot hold a target for people is found by the doctor and not in the night, and
    its password is hidden."""
    for name in checks_of_proxies():
        monkeypatch.delenv(name, raising=False)
    with simulator("--like", "vllm") as provider:
        root = provider.url.removesuffix("/v1")
        asked = ProviderSettings(
            base_url=provider.url,
            metrics_url=root.replace("//", f"//me:{CANARY}@") + page,
            interactive_ttft_s=0.5,
        )
        _, found = of_provider(asked)
    assert (said in found.seen, CANARY in found.seen + found.fix) == (True, False)
    assert found.verdict is (Verdict.GOOD if page == "/metrics" else Verdict.WARNING)
