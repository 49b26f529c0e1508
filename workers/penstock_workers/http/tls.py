"""TLS for one server: the system's authorities, the host's name checked, and sessions taken up
again."""

from __future__ import annotations

import ssl


class ResumingContext(ssl.SSLContext):
    """Begins each connection with the session of an earlier one, where the server gave one: no
    certificates then.

    asyncio and uvloop open a connection with ``wrap_bio`` and have no argument for a session.
    """

    session: ssl.SSLSession | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(
            incoming, outgoing, server_side, server_hostname, session or self.session
        )


def client_context() -> ResumingContext:
    """As ``ssl.create_default_context`` makes one.

    For one server: sessions are not valid for others."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificates and names
    context.verify_flags = ssl.create_default_context().verify_flags
    context.load_default_certs()  # those of SSL_CERT_FILE and SSL_CERT_DIR, or the system's
    context.set_alpn_protocols(["http/1.1"])
    return context
