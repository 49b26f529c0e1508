"""Who asks, behind proxies: what a trusted one says of it, and nothing that the caller wrote
itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from starlette.requests import HTTPConnection

from penstock_gateway.callers.caller import HOPS_MAX, Proxies
from penstock_gateway.settings import GatewayFields

OURS = ("10.0.0.0/8", "2001:db8::/32")


def from_peer(peer: str, *forwarded: str) -> HTTPConnection:
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    return HTTPConnection({"type": "http", "client": (peer, 4711), "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("10.0.0.5", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.5", ["203.0.113.7, 10.0.0.9"], "203.0.113.7"),  # two balancers in a row
        ("10.0.0.5", ["203.0.113.7", "10.0.0.9"], "203.0.113.7"),  # the same in two headers
        # the caller has written the first one
        ("10.0.0.5", ["1.2.3.4, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.5", ["10.9.9.9, 203.0.113.7"], "203.0.113.7"),  # even a trusted one
        ("10.0.0.5", ["203.0.113.7:8080"], "203.0.113.7"),
        ("10.0.0.5", ["[2001:db9::1]:8080"], "2001:db9::/64"),
        ("10.0.0.5", ["::ffff:203.0.113.7"], "203.0.113.7"),
        # a balancer of IPv4 at a socket of IPv6
        ("::ffff:10.0.0.5", ["203.0.113.7"], "203.0.113.7"),
        ("2001:db8::5", ["2001:db9::1"], "2001:db9::/64"),  # of one of IPv6 its network
        # no trusted proxy: the header says nothing
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", [""], "10.0.0.5"),
        ("10.0.0.5", ["unknown"], "10.0.0.5"),
        ("10.0.0.5", ["203.0.113.7, unknown"], "10.0.0.5"),
        ("10.0.0.5", ["10.0.0.9, 10.0.0.8"], "10.0.0.9"),  # all are trusted
        ("10.0.0.5", ["203.0.113.7, " + ", ".join(["10.0.0.9"] * 2 * HOPS_MAX)], "10.0.0.9"),
    ],
)
def test_the_first_address_from_the_end_that_is_no_proxy_asks(
    peer: str, forwarded: list[str], caller: str
) -> None:
    """Each proxy adds its own peer at the end; what a caller wrote stands before that."""
    assert Proxies(OURS).caller_of(from_peer(peer, *forwarded)) == caller


def test_without_the_setting_the_header_says_nothing() -> None:
    """A caller that could name its address could have as many wrong keys as it likes."""
    assert Proxies(()).caller_of(from_peer("10.0.0.5", "203.0.113.7")) == "10.0.0.5"


@pytest.mark.parametrize("wrong", ["balancer", "10.0.0.5/8", "*", "10.0.0.0/40"])
def test_a_proxy_is_named_by_address_or_network(wrong: str) -> None:
    """The message has the value and what to write."""
    with pytest.raises(
        ValidationError, match=r"no address and no network; write 10.0.0.5 or 10.0.0.0/8"
    ):
        GatewayFields(trusted_proxies=(wrong,))
