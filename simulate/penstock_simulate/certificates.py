"""Certificates for `penstock simulate --certificate`: a good one, and bad ones."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_simulate.choices import BadSetting

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
    return builder.sign(key if signer is None else signer[0], hashes.SHA256())


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
