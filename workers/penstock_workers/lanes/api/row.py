"""The row of the `api` lane.

What `penstock doctor` finds of a provider: whether it is there, takes the key, and is asked over
a safe way.

Asks for the list of models, which costs nothing, on the way that workers take: no redirects, no
proxy but the configured one.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock_ledger.redaction import one_line, redact
from penstock_workers.clouds import GoogleTokens, Signer
from penstock_workers.errors import MissingApiKey, NoCredentials, PlainHttp
from penstock_workers.lanes.row import LaneFinding, LaneRow
from penstock_workers.provider_calls import headers_of, list_address, signer_of
from penstock_workers.settings import ProviderSettings, WorkerSettings, proxy_variables

if TYPE_CHECKING:
    from penstock_workers.item.lane import Admission
    from penstock_workers.lanes.api.api_lane import ApiLane


SUBJECT = "provider"
TIMEOUT_S = 10.0
SHOWN_CHARS = 100  # of a refusal
NO_LIST = (404, 405, 501)  # a server that speaks chat and has no list of models


def check(settings: WorkerSettings, *, knock: bool) -> Iterator[LaneFinding]:
    """Check each provider that is configured, if it may be asked.

    One that is all defaults was not configured."""
    for name, provider in settings.providers.items():
        if knock and provider != ProviderSettings():
            yield from _provider(name, provider)


def _provider(name: str, settings: ProviderSettings) -> Iterator[LaneFinding]:
    """Check the way of the provider's key, then the provider itself."""
    variable = settings.api_key_env
    try:
        key = settings.api_key(name)
    except MissingApiKey:
        yield _bad(f"{name}: {variable} is not set", f"export {variable}=…")
        return
    except PlainHttp as error:
        yield _bad(f"{name}: {error}")
        return
    if settings.shows_key:
        seen = (
            f"{name}: allow_plain_http is set, so the key of {variable} can be read on the way to "
            f"{settings.shown_url}"
        )
        yield _warning(
            seen, "https:// where the server can; else only on a network that is yours alone"
        )
    yield from _proxies(name, settings)
    try:
        signer = signer_of(name, settings)
    except NoCredentials as error:
        yield _bad(str(error))
        return
    yield _asked(name, settings, key, signer)
    if settings.metrics_url is not None:
        yield _figures(name, settings.metrics_url, settings)


def _asked(
    name: str, settings: ProviderSettings, key: str | None, signer: Signer | GoogleTokens | None
) -> LaneFinding:
    shown = settings.shown_url
    try:
        status, said = _models(settings, key, signer)
    except ssl.SSLCertVerificationError as error:
        fix = "a certificate of a public CA, or SSL_CERT_FILE with yours in every process"
        return _bad(f"{name}: the certificate of {shown} is refused: {error.verify_message}", fix)
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        return _warning(
            f"{name}: {shown} does not answer: {why}", "check base_url, and that the server runs"
        )
    return _judged(
        name, settings, status, one_line(said)[:SHOWN_CHARS], is_signed=signer is not None
    )


def _figures(name: str, url: str, settings: ProviderSettings) -> LaneFinding:
    """Check that the server's own figures can be read, and that they say what is asked of them."""
    from penstock_workers.http import HttpError, UnusableRequest
    from penstock_workers.lanes.api.polls import ask_once

    shown = redact(url)
    try:
        gauges = asyncio.run(ask_once(url))
    except (HttpError, UnusableRequest, ValueError) as error:
        return _warning(f"{name}: no figures from {shown}: {redact(str(error))}", "see metrics_url")
    if settings.interactive_ttft_s is not None and gauges.fault:
        return _warning(
            f"{name}: {shown} cannot hold interactive_ttft_s: {gauges.fault}",
            "give the /metrics of a vLLM that keeps its statistics",
        )
    return LaneFinding(True, f"{name}: {shown} has the server's figures", subject=SUBJECT)


def _judged(
    name: str, settings: ProviderSettings, status: int, said: str, *, is_signed: bool
) -> LaneFinding:
    shown, variable = settings.shown_url, settings.api_key_env
    if status in (401, 403):
        fix = (
            f"correct the key in {variable}"
            if variable
            else "correct the cloud's credentials, their region or their rights"
            if is_signed
            else "name the variable that holds its key: api_key_env"
        )
        return _bad(f"{name}: {shown} refuses this key or request with {status}: {said}", fix)
    if status == 402:
        return _bad(f"{name}: {shown} answers 402: {said}", "add credit at the provider")
    if 300 <= status < 400:
        fix = (
            "base_url must be the final address: redirects are not followed, so that keys go "
            "nowhere else"
        )
        return _bad(f"{name}: {shown} answers {status}, a redirect", fix)
    if status in NO_LIST:
        seen = f"{name}: {shown} answers, and has no list of models, so the key is not proven"
        return _warning(seen, "check the path of base_url: it mostly ends in /v1")
    if status >= 400:
        return _warning(
            f"{name}: {shown} answers {status}: {said}", "see the provider's status page"
        )
    took = f"takes the key of {variable}" if variable else "asks for no key"
    took = "takes the cloud's credentials" if is_signed else took
    return LaneFinding(True, f"{name}: {shown} answers and {took}", subject=SUBJECT)


def _bad(seen: str, fix: str = "") -> LaneFinding:
    return LaneFinding(False, seen, fix, subject=SUBJECT, stops=True)


def _warning(seen: str, fix: str) -> LaneFinding:
    return LaneFinding(False, seen, fix, subject=SUBJECT)


def _models(
    settings: ProviderSettings, key: str | None, signer: Signer | GoogleTokens | None
) -> tuple[int, str]:
    listed = list_address(settings)
    parts, headers = urlsplit(listed), dict(headers_of(settings.kind, key))
    headers |= {} if signer is None else signer.signed("GET", listed)
    via = urlsplit(settings.proxy) if settings.proxy else parts
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(via.hostname or "", via.port, timeout=TIMEOUT_S)
    target = urlsplit(listed).path
    if settings.proxy and secure:
        connection.set_tunnel(parts.hostname or "", parts.port or 443)
    elif settings.proxy:
        target = listed
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(2_000).decode("utf-8", "replace")
    finally:
        connection.close()


def _proxies(name: str, settings: ProviderSettings) -> Iterator[LaneFinding]:
    """Warn of variables that calls to providers do not follow.

    S3's client and the exporter of traces do."""
    found = proxy_variables()
    if found and settings.proxy is None:
        seen = (
            f"{name}: {', '.join(found)} is set: S3 and traces go through it, calls to this "
            "provider do not"
        )
        fix = f'proxy = "http://…" in [providers.{name}] sends them there, too'
        yield LaneFinding(False, seen, fix, subject="proxy")


def _make(settings: WorkerSettings) -> ApiLane:
    from penstock_workers.lanes.api.api_lane import ApiLane
    from penstock_workers.lanes.api.images import ImageStore

    lane = ApiLane(
        settings.providers,
        settings.max_answer_bytes,
        settings.answer_memory_bytes,
        settings.http_client,
    )
    place = settings.images_place
    lane.images = ImageStore(place, settings.providers, settings.s3_endpoint_url)
    return lane


def _admission(settings: WorkerSettings, lane: ApiLane) -> Admission:
    from penstock_workers.lanes.api.admission import QuotaAdmission

    lane.models.start()
    return QuotaAdmission.open(settings)


API: LaneRow[ApiLane] = LaneRow(
    name="api",
    make=_make,
    admission=_admission,
    modules=("penstock_workers.lanes.api.api_lane", "penstock_workers.lanes.api.admission"),
    waits_for="quota",
    check=check,
)
