"""The reading of ``broker_url``: what is refused, in whose words, and that a password is never
among them."""

from __future__ import annotations

import ssl

import pytest

from penstock_producer.errors import SettingsError
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.celery_app.app import create_app
from penstock_workers.settings import WorkerSettings

REFUSED = (
    ("redis://h:6379/0", "redis_url"),
    ("rabbit", "amqp://"),
    ("amqp://user:secret/x@host/v", "%-encode"),
    ("amqp://", "host"),
    ("amqp://h;amqps://h2", "same scheme"),
    ("amqp://h?ssl_ca_certs=/ca.pem", "amqps://"),
    ("amqps://h?verify=no", "options are"),
    ("amqps://h?ssl_cert_reqs=maybe", "required"),
)


@pytest.mark.parametrize(("url", "said"), REFUSED)
def test_an_address_that_is_none_is_refused_with_the_fix(url: str, said: str) -> None:
    """The error says what to write instead."""
    with pytest.raises(ValueError, match=said):
        AmqpAddress.parse(url)


@pytest.mark.parametrize(
    "url", ["amqp://me:se/cret@h/v", "amqp://me:se@cret@h:x/v", "http://me:secret@h"]
)
def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Neither in the error of a setting, nor in what is printed of an address, nor in its repr."""
    monkeypatch.setenv("PENSTOCK_BROKER_URL", url)
    with pytest.raises(SettingsError) as refused:
        WorkerSettings.load()
    assert "cret" not in str(refused.value)
    address = AmqpAddress.parse("amqp://me:secret@h:1/v;amqp://me:secret@h2/v")
    assert "secret" not in address.shown + repr(address)
    assert address.shown == "amqp://me:…@h:1/v;amqp://me:…@h2/v"


def test_tls_checks_certificate_and_name() -> None:
    """Unless the address says otherwise; files are named as in redis_url."""
    address = AmqpAddress.parse("amqps://h?ssl_ca_certs=/ca.pem")
    assert address.tls == {
        "ca_certs": "/ca.pem",
        "cert_reqs": ssl.CERT_REQUIRED,
        "server_hostname": "h",
    }
    assert AmqpAddress.parse("amqps://h?ssl_cert_reqs=none").tls == {
        "cert_reqs": ssl.CERT_NONE,
        "server_hostname": None,
    }
    assert AmqpAddress.parse("amqp://h").tls is None


def test_an_empty_variable_means_redis() -> None:
    """A compose file can leave it empty more easily than out."""
    assert WorkerSettings(broker_url="").broker_url is None


def test_a_stock_redis_transport_beside_rabbitmq_is_refused() -> None:
    """The two contradict each other."""
    with pytest.raises(ValueError, match="broker_transport"):
        WorkerSettings(broker_url="amqp://h", broker_transport="redis")


def test_queues_of_the_app_are_quorum_queues() -> None:
    """Those of items and of jobs, whichever process declares them; on Redis nothing is said of a
    type."""
    queues = create_app(WorkerSettings(broker_url="amqp://h")).amqp.queues
    assert {queue.queue_arguments["x-queue-type"] for queue in queues.values()} == {"quorum"}
    assert len(queues) == 2
    assert {
        queue.queue_arguments for queue in create_app(WorkerSettings()).amqp.queues.values()
    } == {None}
