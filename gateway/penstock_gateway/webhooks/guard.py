"""Where a webhook may go: not to this machine, not into its network, not to the metadata service of
its cloud.

A URL is checked by its looks when it is given, and the addresses of its host at each try: what the
resolver answers is what is connected to, so that a name cannot mean one address for the check and
another for the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["UNREACHABLE", "GuardedResolver", "NotAllowed", "check_host", "check_url", "is_public"]

URL_MAX: Final = 2_048
PORTS: Final = (443, 8443)  # of hosts that the operator has not named
RESOLVE_S: Final = 5.0
ADDRESSES_MAX: Final = 16  # of one host; further ones are not tried

_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_NUMBER: Final = re.compile(
    r"(?:0x[0-9a-f]*|[0-9]+)"
)  # as the last part of a name it makes an address: 127.1, 0x7f000001
# What Python calls public, in one of its versions or in all, and what is none of the public
# internet's receivers.
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure: the host of each virtual machine, with its keys
        "192.0.0.0/24",  # protocols; 192.0.0.192 is Oracle's metadata service
        "192.31.196.0/24",  # AS112: whichever server is next
        "192.52.193.0/24",  # multicast relays
        "192.88.99.0/24",  # 6to4 relays
        "192.175.48.0/24",  # AS112
        # NAT64 of a network's own: to IPv4 addresses that cannot be read out of it
        "64:ff9b:1::/48",
        "100::/64",  # nowhere
        "100:0:0:1::/64",
        "2001::/23",  # protocols: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, to any IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
    )
)
_NAT64: Final = ipaddress.IPv6Network(
    "64:ff9b::/96"
)  # the last 32 bits are the IPv4 address that is reached
_ISATAP: Final = frozenset(
    {0x0000_5EFE, 0x0200_5EFE}
)  # before an IPv4 address of the inner network, in any IPv6 network


UNREACHABLE: Final = "cannot be reached"
"""All that a caller sees of a host without an answer: in the operator's network it is not its
business whether a name, an address or a port is there. The log says more."""


class NotAllowed(OSError):
    """A webhook is not sent there. ``why`` is for the operator alone."""

    def __init__(self, told: str, why: str = "") -> None:
        super().__init__(told)
        self.why = why or told


def check_url(url: str, allowed_hosts: Collection[str]) -> SplitResult:
    """Of a URL by its looks.

    ``allowed_hosts`` are named by the operator: http, any port and any address are right for them.

    Raises NotAllowed.
    """
    if (
        len(url) > URL_MAX
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or "\\" in url
    ):
        raise NotAllowed(
            "write the URL in printable ASCII, without blanks and backslashes, in at most "
            f"{URL_MAX} characters"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise NotAllowed("this is not a URL; write https://host/path") from None
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise NotAllowed("write the URL without user, password and fragment")
    if host in allowed_hosts:
        if parts.scheme not in ("http", "https"):
            raise NotAllowed("begin the URL with https:// or http://")
        return parts
    if parts.scheme != "https":
        raise NotAllowed(
            "begin the URL with https://; http is for hosts that the setting gateway.webhook_hosts "
            "names"
        )
    if (443 if port is None else port) not in PORTS:
        raise NotAllowed(f"webhooks are sent to the ports {' and '.join(map(str, PORTS))} only")
    _check_name(host)
    return parts


async def check_host(parts: SplitResult, allowed_hosts: Collection[str]) -> None:
    """Look now where the host is, for those who register a URL. Raises NotAllowed."""
    host = parts.hostname or ""
    if host not in allowed_hosts and not _is_address(host):
        await _public_addresses(host, parts.port or 443, socket.AF_UNSPEC)


def is_public(address: str) -> bool:
    """Return whether an address is one of the public internet."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)))
        if ip.is_site_local or (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return False
    if any(ip in network for network in _NOT_PUBLIC):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


class GuardedResolver(AbstractResolver):
    """The addresses of a host, all of which have to be public; the connection is made to one of
    these and no other."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed = allowed_hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await (_addresses if host in self._allowed else _public_addresses)(
            host, port, family
        )
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, address in found
        ]

    async def close(self) -> None:
        return


def _check_name(host: str) -> None:
    if _is_address(host):
        if not is_public(host):
            raise NotAllowed(f"{host} is not an address of the public internet")
        return
    if not _HOST.fullmatch(host.rstrip(".")) or _NUMBER.fullmatch(
        host.rstrip(".").rpartition(".")[2]
    ):
        raise NotAllowed("the URL names no host; write https://host/path")


async def _public_addresses(host: str, port: int, family: int) -> list[tuple[int, str]]:
    found = await _addresses(host, port, family)
    if not all(is_public(address) for _, address in found):
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} is in a private network")
    return found


async def _addresses(host: str, port: int, family: int) -> list[tuple[int, str]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            answers = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} has no address") from None
    found = list(dict.fromkeys((int(kind), str(address[0])) for kind, _, _, _, address in answers))
    if not found:
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} has no address")
    return found[:ADDRESSES_MAX]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
