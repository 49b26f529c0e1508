"""The simulated provider over HTTP: aiohttp without middlewares and access log, and one process.

With `--certificate` it has a certificate: a good one, or a bad one.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from penstock_simulate.answers.calls import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES
from penstock_simulate.answers.media import IMAGE_EDITS, IMAGES, TRANSCRIPTIONS, made
from penstock_simulate.batches.anthropic import anthropic_routes
from penstock_simulate.batches.batch_service import BatchService
from penstock_simulate.batches.bedrock import bedrock_routes
from penstock_simulate.batches.gemini import gemini_routes
from penstock_simulate.batches.openai import openai_routes
from penstock_simulate.batches.vertex import vertex_routes
from penstock_simulate.cached_contents import cached_content_routes
from penstock_simulate.choices import BadSetting
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.hostile import TRAP
from penstock_simulate.inference import converse, generate, inference, messages, uploads
from penstock_simulate.provider import MODELS, Provider

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate


DAY = datetime.timedelta(days=1)


def served(kind: str, authority: Path | None) -> ssl.SSLContext:
    """Return a server's context with a certificate of this kind (see choices.CERTIFICATES).

    ``authority``: the file with the certificate and key that sign it, made where it is missing;
    None makes one that no client knows. Raises BadSetting where `cryptography` is not installed or
    the file cannot be used.
    """
    try:
        return _context(*_made(kind, authority))
    except ModuleNotFoundError as error:
        raise BadSetting(f"--certificate needs {error.name}: pip install cryptography") from None
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"--authority {authority}: {error}; give a file that this command made, or a new one"
        ) from error


def _made(kind: str, authority: Path | None) -> tuple[bytes, bytes]:
    """Return the certificate and its key as PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    span = (now - 3 * DAY, now - DAY) if kind == "expired" else (now - DAY, now + DAY)
    signer = None if kind == "self-signed" else _authority(authority)
    certificate = _signed(key, "another.example" if kind == "other-host" else None, span, signer)
    return _pem(certificate), _key_pem(key)


def _authority(path: Path | None) -> tuple[EllipticCurvePrivateKey, Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if path is not None and path.exists():
        text = path.read_bytes()
        loaded = load_pem_private_key(text[text.index(b"-----BEGIN PRIVATE") :], None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("its key is of another type")
        return loaded, x509.load_pem_x509_certificate(text)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = _signed(key, None, (now - 30 * DAY, now + 30 * DAY), None, authority=True)
    if path is not None:
        path.touch(mode=0o600)
        path.write_bytes(_pem(certificate) + _key_pem(key))
    return key, certificate


def _signed(
    key: EllipticCurvePrivateKey,
    host: str | None,
    span: tuple[datetime.datetime, datetime.datetime],
    signer: tuple[EllipticCurvePrivateKey, Certificate] | None,
    *,
    authority: bool = False,
) -> Certificate:
    """Return a certificate for ``host``, None for this machine.

    Signed with its own key where there is no signer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = x509.Name(
        [
            x509.NameAttribute(
                x509.NameOID.COMMON_NAME, "penstock simulate" + (" authority" if authority else "")
            )
        ]
    )
    names: list[x509.GeneralName] = [x509.DNSName(host or "localhost")]
    if host is None:
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    issuer = name if signer is None else signer[1].subject
    builder = x509.CertificateBuilder(
        issuer, name, key.public_key(), x509.random_serial_number(), *span
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=authority, path_length=None), critical=True
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signing = key if signer is None else signer[0]
    # What Python asks for since 3.13 (VERIFY_X509_STRICT).
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
    )
    if authority:
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    return builder.sign(signing, hashes.SHA256())


def _context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile() as file:  # load_cert_chain reads files only
        file.write(certificate + key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


MAX_REQUEST_BYTES = 32 * 1024 * 1024
BACKLOG = 4096  # connections waiting to be accepted: a fleet opens all of its at once
GRACE_S = 5.0  # for calls in flight at the end
JSON = {"Content-Type": "application/json"}

PROVIDER: web.AppKey[Provider] = web.AppKey("provider", Provider)
SERVICE: web.AppKey[BatchService] = web.AppKey("service", BatchService)


def make_app(config: SimulatorConfig) -> web.Application:
    """Return the application.

    Its shutdown ends hanging calls, closes the call log and removes the files of batches."""
    provider, closing = Provider(config), asyncio.Event()

    async def ending(_: web.Application) -> None:
        closing.set()

    async def ended(_: web.Application) -> None:
        provider.book.close()
        await service.close()

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    service = BatchService(provider)
    app[PROVIDER], app[SERVICE] = provider, service
    for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS, IMAGES):
        app.router.add_post(endpoint, inference(provider, endpoint, closing))
    for endpoint in (TRANSCRIPTIONS, IMAGE_EDITS):
        app.router.add_post(endpoint, uploads(provider, endpoint, closing))
    app.router.add_get("/images/{digest:[0-9a-f]{64}}.png", _image)
    app.router.add_post(MESSAGES, messages(provider, closing))
    app.router.add_post(
        "/v1beta/models/{model:[^/:]+}:{method:(?:streamG|g)enerateContent}",
        generate(provider, closing),
    )
    app.router.add_post(
        "/v1/projects/{project}/locations/{location}/publishers/google/models/{model:[^/:]+}:"
        "{method:(?:streamG|g)enerateContent}",
        generate(provider, closing),
    )
    app.router.add_routes(cached_content_routes(provider))
    app.router.add_post("/model/{model}/converse", converse(provider, closing))
    app.router.add_get("/foundation-models", _foundation_models)
    for routes in (openai_routes, anthropic_routes, gemini_routes, bedrock_routes, vertex_routes):
        app.router.add_routes(routes(service))
    app.router.add_get("/batches", _batches)
    app.router.add_get("/batches/requests", _batch_requests)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/stats", _stats)
    app.router.add_get("/calls", _calls)
    app.router.add_post("/reset", _reset)
    app.router.add_get("/control", _controls)
    app.router.add_post("/control", _control)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/health", _health)
    app.router.add_route("*", TRAP, _trap)
    app.on_shutdown.append(ending)
    app.on_cleanup.append(ended)
    return app


async def _models(_: web.Request) -> web.Response:
    data = [
        {"id": name, "object": "model", "created": 0, "owned_by": "penstock"} for name in MODELS
    ]
    return web.Response(body=orjson.dumps({"object": "list", "data": data}), headers=JSON)


async def _foundation_models(_: web.Request) -> web.Response:
    summaries = [{"modelId": name, "modelName": name} for name in MODELS]
    return web.Response(body=orjson.dumps({"modelSummaries": summaries}), headers=JSON)


async def _image(request: web.Request) -> web.Response:
    image = made.get(request.match_info["digest"])
    if image is None:
        raise web.HTTPNotFound
    return web.Response(body=image, content_type="image/png")


async def _stats(request: web.Request) -> web.Response:
    stats = request.app[PROVIDER].stats(time.monotonic()) | {
        "batches": request.app[SERVICE].stats()
    }
    return web.Response(body=orjson.dumps(stats), headers=JSON)


async def _calls(request: web.Request) -> web.Response:
    return web.Response(
        body=orjson.dumps(request.app[PROVIDER].book.calls(_least(request, "min_calls"))),
        headers=JSON,
    )


async def _batches(request: web.Request) -> web.Response:
    """List the batches of all dialects, the oldest first, with what became of each.

    It also says how often results were read."""
    return web.Response(body=orjson.dumps({"batches": request.app[SERVICE].shown()}), headers=JSON)


async def _batch_requests(request: web.Request) -> web.Response:
    """Show how often each request was submitted and answered by batches."""
    return web.Response(
        body=orjson.dumps(request.app[SERVICE].requests(_least(request, "min_submitted"))),
        headers=JSON,
    )


def _least(request: web.Request, name: str) -> int:
    least = request.query.get(name, "1")
    if not least.isdecimal():
        raise web.HTTPBadRequest(text=f"{name}: {least!r} is not a whole number")
    return int(least)


async def _reset(request: web.Request) -> web.Response:
    request.app[PROVIDER].reset()
    request.app[SERVICE].reset()
    return web.Response(status=204)


async def _controls(request: web.Request) -> web.Response:
    return web.Response(body=orjson.dumps(request.app[PROVIDER].controls()), headers=JSON)


async def _control(request: web.Request) -> web.Response:
    """Return what is in force after the change; 400 with the reason when it cannot be made."""
    try:
        request.app[PROVIDER].control(await request.read(), time.monotonic())
    except BadSetting as problem:
        return web.Response(
            status=400, body=orjson.dumps({"error": {"message": str(problem)}}), headers=JSON
        )
    return await _controls(request)


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[PROVIDER].metrics(time.monotonic())
    if text is None:
        raise web.HTTPNotFound
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


async def _trap(request: web.Request) -> web.Response:
    """Count clients that follow a redirect to here, with and without a key."""
    request.app[PROVIDER].book.trapped(
        "with a key" if "Authorization" in request.headers else "without a key"
    )
    return web.Response(status=200, body=b"{}", headers=JSON)


async def _health(_: web.Request) -> web.Response:
    """Answer probes as vLLM's server does."""
    return web.Response()


@asynccontextmanager
async def running(config: SimulatorConfig) -> AsyncIterator[str]:
    """Serve the provider while the context lasts; yields the URL with the real port."""
    tls = None if config.certificate is None else served(config.certificate, config.authority)
    runner = web.AppRunner(make_app(config), access_log=None, shutdown_timeout=GRACE_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=BACKLOG, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise BadSetting(
                f"--host {config.host} --port {config.port}: cannot listen there: "
                f"{error.strerror or error}; give --port 0 for a free port"
            ) from error
        yield _url("https" if tls else "http", config.host, runner)
    finally:
        await runner.cleanup()


def serve(config: SimulatorConfig) -> None:
    asyncio.run(_serve(config))


async def _serve(config: SimulatorConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config) as url:
        sys.stdout.write(f"penstock simulate: serving {url}/v1\n")
        sys.stdout.flush()
        await stop.wait()


def _url(scheme: str, host: str, runner: web.AppRunner) -> str:
    port = runner.addresses[0][1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
