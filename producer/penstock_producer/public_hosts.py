"""The public internet, as far as addresses show it, and files fetched from there.

What others name must not make this machine ask itself, its network or the metadata service of a
cloud: a host's addresses are looked at, and the connection is made to one of these and no other.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

__all__ = ["NotFetched", "fetch", "is_address", "is_host", "is_public"]

_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
# as the last part of a name it makes an address: 127.1, 0x7f000001
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
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
# the last 32 bits are the IPv4 address that is reached
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# before an IPv4 address of the inner network, in any IPv6 network
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


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


def is_address(host: str) -> bool:
    """Return whether a host is written as an address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_host(name: str) -> bool:
    """Return whether a name is one of a host, and not an address in disguise."""
    plain = name.rstrip(".")
    return bool(_HOST.fullmatch(plain)) and not _NUMBER.fullmatch(plain.rpartition(".")[2])


CONNECT_S: Final = 10.0
FETCH_S: Final = 120.0  # from the beginning to the last byte
PART_BYTES: Final = 256 * 1024
URL_CHARS: Final = 8_192


class NotFetched(OSError):
    """A file was not fetched; the message says why, without what the host's network holds."""


def fetch(url: str, most: int, own_hosts: Collection[str] = ()) -> bytes:
    """Return the file at an address, of at most ``most`` bytes. Raises NotFetched.

    ``own_hosts`` are the operator's: of these http, any port and any address are right. Redirects
    are not followed.
    """
    scheme, host, port, target = _read(url, own_hosts)
    connection = _Connection(host, port, scheme == "https", host not in own_hosts)
    ends_at = time.monotonic() + FETCH_S
    try:
        connection.request("GET", target, headers={"Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise NotFetched(f"{host} answers {answer.status}")
        parts, size = [], 0
        while part := answer.read(min(PART_BYTES, most + 1 - size)):
            parts.append(part)
            size += len(part)
            if size > most:
                raise NotFetched(f"it has more than {most} bytes")
            if time.monotonic() > ends_at:
                raise NotFetched(f"it is not there after {FETCH_S:.0f} s")
        if answer.length:
            raise NotFetched("the connection ended before the file did")
        return b"".join(parts)
    except NotFetched:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise NotFetched(f"{host} cannot be reached ({type(error).__name__})") from error
    finally:
        connection.close()


def _read(url: str, own_hosts: Collection[str]) -> tuple[str, str, int, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise NotFetched("this is no address; write https://host/path") from None
    if len(url) > URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise NotFetched(f"write https://host/path, in at most {URL_CHARS} characters of ASCII")
    if parts.username is not None or parts.password is not None:
        raise NotFetched("write the address without user and password")
    is_own = host in own_hosts
    if parts.scheme != "https" and not (is_own and parts.scheme == "http"):
        raise NotFetched("begin the address with https://")
    if not is_own and port not in (None, 443):
        raise NotFetched("files are fetched from the port 443 only")
    if not is_own and (not is_public(host) if is_address(host) else not is_host(host)):
        raise NotFetched(f"{host or 'it'} is no host of the public internet")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80), target


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was looked at."""

    def __init__(self, host: str, port: int, is_tls: bool, is_guarded: bool) -> None:
        super().__init__(host, port, timeout=CONNECT_S)
        self._is_tls, self._is_guarded = is_tls, is_guarded

    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        if self._is_guarded and not all(map(is_public, addresses)):
            raise NotFetched(f"{self.host} cannot be reached")
        self.sock = self._reached(addresses)
        if self._is_tls:
            tls = ssl.create_default_context()
            self.sock = tls.wrap_socket(self.sock, server_hostname=self.host)

    def _reached(self, addresses: Sequence[str]) -> socket.socket:
        for address in addresses[:-1]:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, self.port), CONNECT_S)
        return socket.create_connection((addresses[-1], self.port), CONNECT_S)
