"""RabbitMQ's address has one reader: that of ``broker_url``.

    amqp://[user:password@]host[:5672][/vhost]      one node
    amqps://…?ssl_ca_certs=/ca.pem                  over TLS; certificate and host name are checked
    amqp://host/vhost;amqp://host2/vhost            nodes of one cluster: when one is down, the next one is tried

TLS options in the query are named as in ``redis_url``: ``ssl_ca_certs``, ``ssl_certfile``,
``ssl_keyfile``, ``ssl_cert_reqs``.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

__all__ = ["AmqpAddress"]

SCHEMES: Final = ("amqp", "amqps")
SEPARATOR: Final = ";"  # kombu's, between nodes
# put before the scheme of each node, it makes kombu use Penstock's transport
SCHEME_PREFIX: Final = "penstock"
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CERT_REQS: Final = {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE}


@dataclass(frozen=True)
class AmqpAddress:
    """Nodes of one RabbitMQ. Make one with ``parse``."""

    urls: tuple[str, ...] = field(repr=False)  # hold passwords; without their queries
    # as py-amqp names it; None = no TLS
    tls: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; raise ValueError, which says what to write and quotes none of it."""
        nodes = [_split(url) for url in text.split(SEPARATOR)]
        if len({(node.scheme, node.query) for node in nodes}) > 1:
            raise ValueError("give all nodes the same scheme and the same options")
        bare = tuple(urlunsplit(node._replace(query="")) for node in nodes)
        return cls(bare, _tls(nodes[0]))

    @property
    def kombu_url(self) -> str:
        """The address with the schemes that ``connect.register`` has registered with kombu."""
        return SEPARATOR.join(f"{SCHEME_PREFIX}{url}" for url in self.urls)

    @property
    def shown(self) -> str:
        """The address without passwords, for logs."""
        return SEPARATOR.join(_without_password(urlsplit(url)) for url in self.urls)


def _split(url: str) -> SplitResult:
    try:
        node = urlsplit(url)
        port = node.port
    except ValueError:  # whose message may hold a part of the password
        port = 0
        node = SplitResult(url.partition("://")[0], "", "", "", "")
    if node.scheme not in SCHEMES or "://" not in url:
        raise ValueError("start it with amqp:// or amqps:// (a Redis goes into redis_url)")
    if not node.hostname or port == 0 or node.fragment:
        raise ValueError(
            "write amqp://user:password@host:5672/vhost, and %-encode what is special in the "
            "password"
        )
    return node


def _tls(node: SplitResult) -> dict[str, Any] | None:
    options = dict(parse_qsl(node.query))
    unknown = [name for name in options if name not in (*_TLS_FILES, "ssl_cert_reqs")]
    if unknown or (options and node.scheme != "amqps"):
        raise ValueError(
            f"options are {', '.join((*_TLS_FILES, 'ssl_cert_reqs'))}, and go with amqps:// only"
        )
    if node.scheme != "amqps":
        return None
    reqs = options.pop("ssl_cert_reqs", "required")
    if reqs not in _CERT_REQS:
        raise ValueError("ssl_cert_reqs is `required` or `none`")
    files = {name.removeprefix("ssl_"): path for name, path in options.items()}
    return {
        **files,
        "cert_reqs": _CERT_REQS[reqs],
        "server_hostname": None if reqs == "none" else node.hostname,
    }


def _without_password(node: SplitResult) -> str:
    login, at, host = node.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    return urlunsplit(node._replace(netloc=f"{user}{colon}{'…' if colon else ''}{at}{host}"))
