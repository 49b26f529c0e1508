"""Where webhooks may not go: row 46 of the catalogue of bad input, and what hides behind a name."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from penstock_gateway.webhook_delivery import (
    PAUSES_S,
    GuardedResolver,
    NotAllowed,
    check_host,
    check_url,
    pause_after,
    send,
    trusted,
)
from penstock_ledger import DueDelivery
from penstock_producer.public_hosts import is_public


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        "//example.com",
        "x",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://0/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://100.64.0.1/",
        "https://198.18.0.1/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://240.0.0.1/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[::ffff:a9fe:a9fe]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fc00::1]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[fd00:ec2::254]/",
        "https://[64:ff9b::a00:1]/",
        "https://[2002:a00:1::]/",
        "https://[2001:0:a00:1::]/",
        "https://[::7f00:1]/",
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com:22/",
        "https://example.com:6379/",
        "https://example.com:99999/",
        "https://example.com\\@127.0.0.1/",
        "https://exa mple.com/",
        "https://exam\nple.com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
        "https://example.com#@127.0.0.1/",
        "https://%31%32%37.0.0.1/",
        "https://a..b/",
        "https://-a.com/",
        "https://" + "a" * 64 + ".com/",
        "https://example.com/" + "x" * 3_000,
    ],
)
def test_urls_that_no_webhook_may_have(url: str) -> None:
    """Refused by their looks, before anything is resolved, in each spelling."""
    with pytest.raises(NotAllowed):
        check_url(url, ())


@pytest.mark.parametrize(
    "address",
    [
        "168.63.129.16",
        "192.0.0.1",
        "192.0.0.9",
        "192.0.0.192",
        "192.0.0.199",
        "192.88.99.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.175.48.1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "198.19.255.255",
        "100.127.255.255",
        "0.1.2.3",
        "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110",
        "64:ff9b::7f00:1",
        "64:ff9b:1::808:808",
        "2002:a00:1::",
        "2002:808:808::",
        "3fff::1",
        "3fff:fff::1",
        "2001:db8::1",
        "2001::1",
        "2001:1::1",
        "2001:20::1",
        "2001:1ff::1",
        "2620:4f:8000::1",
        "100::1",
        "100:0:0:1::1",
        "5f00::1",
        "fd20:ce::254",
        "fd00:ec2::254",
        "::8.8.8.8",
        "4000::1",
        "fec0::1",
        "2001:4860::5efe:a00:1",
        "2001:4860::200:5efe:a00:1",
        "fe80::1%eth0",
        "",
        "8.8.8",
        "a",
    ],
)
def test_addresses_that_are_not_of_the_public_internet(address: str) -> None:
    """Metadata services, relays, tunnels and reserved networks, also those that Python takes for
    public; no other text."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "168.63.129.15",
        "192.0.1.1",
        "192.88.98.1",
        "2606:4700::1",
        "2001:4860::1",
        "2001:200::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_addresses_of_the_public_internet(address: str) -> None:
    """Their neighbours, and public addresses of IPv4 that an IPv6 network writes as its own."""
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://hooks.example.com:8443/a?b=c",
        "https://8.8.8.8/x",
        "https://[2606:4700::1]/",
        "https://EXAMPLE.com./",
        "https://xn--bcher-kva.example/",
    ],
)
def test_urls_that_a_webhook_may_have(url: str) -> None:
    """https, a public host, one of two ports."""
    assert check_url(url, ()).geturl()


def test_hosts_that_the_operator_names_may_be_anywhere() -> None:
    """By http, too, and at any port; nothing else becomes right by it."""
    assert check_url("http://127.0.0.1:8000/x", ("127.0.0.1",)).port == 8000
    for url in ("http://127.0.0.2:8000/x", "ftp://127.0.0.1/", "http://user@127.0.0.1/"):
        with pytest.raises(NotAllowed):
            check_url(url, ("127.0.0.1",))


def resolved_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Play a resolver; returns the list of names that it is asked for."""
    asked: list[str] = []

    def answer(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (kind, 1, 6, "", (address, port))
            for kind, address in zip(kinds, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


@pytest.mark.parametrize(
    "inner",
    ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:192.168.0.1", "100.100.100.200"],
)
async def test_a_name_with_one_inner_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    """All addresses of a host have to be public, and the error does not say which is not."""
    resolved_to(monkeypatch, "93.184.216.34", inner)
    with pytest.raises(NotAllowed) as refused:
        await check_host(check_url("https://example.com", ()), ())
    assert inner not in str(refused.value)
    with pytest.raises(NotAllowed):
        await GuardedResolver(()).resolve("example.com", 443)


async def test_the_connection_goes_to_the_addresses_that_were_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the resolver gives to the connection are addresses, which are not looked up again; the
    name stays for TLS."""
    asked = resolved_to(monkeypatch, "93.184.216.34", "2606:4700::1")
    found = await GuardedResolver(()).resolve("example.com", 443, socket.AF_UNSPEC)
    assert [(one["hostname"], one["host"]) for one in found] == [
        ("example.com", "93.184.216.34"),
        ("example.com", "2606:4700::1"),
    ]
    assert asked == ["example.com"]


async def test_a_host_that_has_moved_inside_is_refused_at_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try resolves again, so that a name which meant a public address yesterday is not
    believed today."""
    resolved_to(monkeypatch, "127.0.0.1")
    due = DueDelivery("evt_x", "we_x", "{}", 3, "https://example.com/hook", ["whsec_" + "a" * 32])
    sent = await send(due, (), trusted(None))
    assert (sent.status, sent.error, sent.why) == (
        None,
        "cannot be reached",
        "example.com is in a private network",
    )


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("::ffff:8.8.8.8", True),
        ("::ffff:127.0.0.1", False),
        ("x", False),
        ("", False),
    ],
)
def test_addresses_are_judged_by_what_they_mean(address: str, public: bool) -> None:
    """An IPv4 address inside of an IPv6 one counts as itself."""
    assert is_public(address) is public


def test_tries_are_spread_over_a_day() -> None:
    """Each pause is longer, all of them together are a day, and then it ends."""
    pauses = [pause_after(tries) for tries in range(len(PAUSES_S))]
    assert 20 * 3600 < sum(pause or 0 for pause in pauses) < 28 * 3600
    assert list(PAUSES_S) == sorted(PAUSES_S)
    assert pause_after(len(PAUSES_S)) is None
