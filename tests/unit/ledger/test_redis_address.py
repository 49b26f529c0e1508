"""How `redis_url` is read: one server, TLS, users, Sentinels; and what is refused, with what to
write instead."""

from __future__ import annotations

import pytest

from penstock_ledger import RedisAddress, without_secrets
from penstock_producer.errors import SettingsError
from penstock_producer.settings import ProducerSettings
from penstock_workers.celery_app.app import broker_url, create_app
from penstock_workers.settings import WorkerSettings

THREE = "sentinel://app:p%40w@s1,s2:26380,[::1]:26381/2?service=jobs&sentinel_password=hush&ssl_ca_certs=/ca.pem"


def test_sentinels_are_listed_with_their_own_login() -> None:
    """Hosts with and without a port, the service, and two logins that are not mixed up."""
    address = RedisAddress.parse(THREE)
    assert address.sentinels == (("s1", 26379), ("s2", 26380), ("::1", 26381))
    assert address.service == "jobs"
    assert address.parameters == {
        "db": 2,
        "username": "app",
        "password": "p@w",
        "ssl_ca_certs": "/ca.pem",
    }
    assert address.sentinel_parameters["password"] == "hush"
    assert "username" not in address.sentinel_parameters


def test_tls_checks_certificates_unless_told_otherwise() -> None:
    """`rediss` and `sentinels` demand a certificate that a known authority signed; only the URL can
    say no."""
    assert RedisAddress.parse("rediss://h").parameters["ssl_cert_reqs"] == "required"
    assert RedisAddress.parse("rediss://h?ssl_cert_reqs=none").parameters["ssl_cert_reqs"] == "none"
    both = RedisAddress.parse("sentinels://h/0?service=jobs")
    assert both.over_tls
    assert (both.parameters["ssl_cert_reqs"], both.sentinel_parameters["ssl"]) == ("required", True)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis+cluster://h:7000", "Redis Cluster is not supported"),
        ("rediss+cluster://h:7000", "sentinel://host:26379"),
        ("sentinel://h:26379/0", "service=mymaster"),
        ("sentinel:///0?service=jobs", "at least one Sentinel"),
        ("sentinel://h:x,g/0?service=jobs", "'h:x' is not the host:port"),
        ("amqp://h", "start it with redis://"),
        ("redis:h", "start it with redis://"),
        ("redis://h/0?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_what_is_refused_says_what_to_write(url: str, advice: str) -> None:
    """Each mistake of an address is met where settings are read, by the setting's name and the
    fix."""
    with pytest.raises(SettingsError, match="setting redis_url") as refused:
        ProducerSettings.load(redis_url=url)
    assert advice in str(refused.value)


def test_passwords_are_never_shown() -> None:
    """Neither in what is printed, nor in errors, nor in the configuration that Flower and `inspect
    conf` show."""
    assert without_secrets(THREE) == THREE.replace("p%40w", "…").replace("hush", "…")
    assert without_secrets("redis://h:1/0?db=3") == "redis://h:1/0?db=3"
    assert without_secrets("sqlite:////srv/p.db") == "sqlite:////srv/p.db"
    assert (
        without_secrets("sqlite:///p.db?password=x&cache=a") == "sqlite:///p.db?password=…&cache=a"
    )
    assert (
        without_secrets("postgresql://me@h/d?sslpassword=x") == "postgresql://me@h/d?sslpassword=…"
    )
    with pytest.raises(SettingsError) as refused:
        ProducerSettings.load(redis_url=THREE.replace("service=jobs&", ""))
    conf = create_app(WorkerSettings(redis_url=THREE)).conf
    for text in (str(refused.value), repr(RedisAddress.parse(THREE)), repr(dict(conf))):
        assert not any(secret in text for secret in ("hush", "p%40w", "p@w"))


def test_kombu_gets_the_address_in_its_own_words() -> None:
    """One URL per Sentinel for its stock transport, whose login and database are those of the
    servers."""
    settings = WorkerSettings(
        redis_url="sentinel://:pw@s1,s2:1/3?service=jobs", broker_transport="redis"
    )
    assert broker_url(settings) == "sentinel://:pw@s1:26379/3;sentinel://:pw@s2:1/3"
    assert create_app(settings).conf.broker_transport_options["master_name"] == "jobs"
    assert broker_url(WorkerSettings(redis_url="rediss://h/0", broker_transport="redis")).endswith(
        "?ssl_cert_reqs=required"
    )
