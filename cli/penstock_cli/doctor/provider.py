"""What `penstock doctor` finds of a provider: whether it is there, takes the key, and is asked over a safe way.

Asks for the list of models, which costs nothing, on the way that workers take: no redirects, no proxy but the configured one.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock_cli.doctor.finding import Finding, Verdict
from penstock_cli.settings import proxy_variables
from penstock_cli.show.text import one_line, safe

if TYPE_CHECKING:
    from penstock_workers.settings import ProviderSettings

SUBJECT = "provider"
TIMEOUT_S = 10.0
NO_LIST = (404, 405, 501)  # a server that speaks chat and has no list of models


def provider(name: str, settings: ProviderSettings) -> Iterator[Finding]:
    """Its key's way, then itself."""
    from penstock_workers.errors import MissingApiKey, PlainHttp

    variable = settings.api_key_env
    try:
        key = settings.api_key(name)
    except MissingApiKey:
        yield Finding(Verdict.BAD, SUBJECT, f"{name}: {variable} is not set", f"export {variable}=…")
        return
    except PlainHttp as error:
        yield Finding(Verdict.BAD, SUBJECT, f"{name}: {safe(str(error))}")
        return
    if settings.shows_key:
        seen = (
            f"{name}: allow_plain_http is set, so the key of {variable} can be read on the way to {settings.shown_url}"
        )
        yield Finding(
            Verdict.WARNING, SUBJECT, seen, "https:// where the server can; else only on a network that is yours alone"
        )
    yield from _proxies(name, settings)
    yield _asked(name, settings, key)


def _asked(name: str, settings: ProviderSettings, key: str | None) -> Finding:
    shown = settings.shown_url
    try:
        status, said = _models(settings, key)
    except ssl.SSLCertVerificationError as error:
        fix = "a certificate of a public CA, or SSL_CERT_FILE with yours in every process"
        return Finding(
            Verdict.BAD, SUBJECT, f"{name}: the certificate of {shown} is refused: {error.verify_message}", fix
        )
    except (OSError, http.client.HTTPException) as error:
        fix = "check base_url, and that the server runs"
        return Finding(
            Verdict.WARNING,
            SUBJECT,
            f"{name}: {shown} does not answer: {safe(str(error) or type(error).__name__)}",
            fix,
        )
    return _judged(name, settings, status, one_line(said))


def _judged(name: str, settings: ProviderSettings, status: int, said: str) -> Finding:
    shown, variable = settings.shown_url, settings.api_key_env
    if status in (401, 403):
        fix = f"correct the key in {variable}" if variable else "name the variable that holds its key: api_key_env"
        return Finding(Verdict.BAD, SUBJECT, f"{name}: {shown} refuses this key or request with {status}: {said}", fix)
    if status == 402:
        return Finding(Verdict.BAD, SUBJECT, f"{name}: {shown} answers 402: {said}", "add credit at the provider")
    if 300 <= status < 400:
        fix = "base_url must be the final address: redirects are not followed, so that keys go nowhere else"
        return Finding(Verdict.BAD, SUBJECT, f"{name}: {shown} answers {status}, a redirect", fix)
    if status in NO_LIST:
        seen = f"{name}: {shown} answers, and has no list of models, so the key is not proven"
        return Finding(Verdict.WARNING, SUBJECT, seen, "check the path of base_url: it mostly ends in /v1")
    if status >= 400:
        return Finding(
            Verdict.WARNING, SUBJECT, f"{name}: {shown} answers {status}: {said}", "see the provider's status page"
        )
    took = f"takes the key of {variable}" if variable else "asks for no key"
    return Finding(Verdict.GOOD, SUBJECT, f"{name}: {shown} answers and {took}")


def _models(settings: ProviderSettings, key: str | None) -> tuple[int, str]:
    parts = urlsplit(settings.base_url)
    via = urlsplit(settings.proxy) if settings.proxy else parts
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(via.hostname or "", via.port, timeout=TIMEOUT_S)
    target = f"{parts.path.rstrip('/')}/models"
    if settings.proxy and secure:
        connection.set_tunnel(parts.hostname or "", parts.port or 443)
    elif settings.proxy:
        target = settings.base_url + "/models"
    try:
        connection.request("GET", target, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(2_000).decode("utf-8", "replace")
    finally:
        connection.close()


def _proxies(name: str, settings: ProviderSettings) -> Iterator[Finding]:
    """A warning about variables that S3's client and the exporter of traces follow, and calls to providers do not."""
    found = proxy_variables()
    if found and settings.proxy is None:
        seen = f"{name}: {', '.join(found)} is set: S3 and traces go through it, calls to this provider do not"
        yield Finding(Verdict.WARNING, "proxy", seen, f'proxy = "http://…" in [providers.{name}] sends them there, too')
