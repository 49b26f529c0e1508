"""From which address a request comes: the peer's, or what a trusted proxy says of it.

Each proxy adds the address of its own peer at the end of X-Forwarded-For, so from the end the first
one that is no trusted proxy asks. What stands before that was written by who asks, and may say
anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.requests import HTTPConnection

__all__ = ["FORWARDED", "Proxies"]

HOPS_MAX: Final = 20  # proxies in a row; a longer header is not read any further
PREFIX_BITS: Final = 64  # of IPv6, what one customer of a network has at least
FORWARDED: Final = "x-forwarded-for"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """Those of the setting `gateway.trusted_proxies`."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def caller_of(self, connection: HTTPConnection) -> str:
        """Return the address that asks, as text; of IPv6 its network, which one caller may hold.

        It is the last trusted one where the header names nothing that is an address."""
        peer = connection.client.host if connection.client else ""
        return self.asked_by(peer, connection.headers.getlist(FORWARDED))

    def asked_by(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the same of a peer and the values of its header X-Forwarded-For."""
        found = _address(peer)
        if found is None:
            return peer
        if not self._trusts(found):
            return _counted(found)
        hops = ",".join(forwarded).split(",")
        for hop in reversed(hops[-HOPS_MAX:]):
            address = _address(hop)
            if address is None:
                break
            found = address
            if not self._trusts(address):
                break
        return _counted(found)

    def is_trusted(self, peer: str) -> bool:
        """Return whether this peer is one of the balancers."""
        found = _address(peer)
        return found is not None and self._trusts(found)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _counted(address: Address) -> str:
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), PREFIX_BITS), strict=False))


def _address(text: str) -> Address | None:
    """Read `203.0.113.7`, `203.0.113.7:4711`, `2001:db8::1` or `[2001:db8::1]:4711`.

    One of IPv4 written as IPv6 is of IPv4."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
