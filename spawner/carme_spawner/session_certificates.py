"""Certificates of sessions, by which the hub and its proxy know who answers at an address.

Any user of a node may listen on a port that a session has left. So each session has a certificate
for a name with the random number of its submission, and no request is sent to a server that cannot
show it. The name also holds the node's address: `10-0-0-7.5d0c….carme-session.internal`. The proxy
reads it in `carme/templates/session_identity.js`.
"""

import ipaddress
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from aiohttp import DummyCookieJar
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from carme.errors import ConfigError
from carme.system.files import write

DOMAIN = "carme-session.internal"
_NAME = re.compile(rf"([0-9a-f]+(?:-[0-9a-f]+)+)\.[0-9a-f]+\.{re.escape(DOMAIN)}")
_AUTHORITY_DAYS = 20 * 365
_SESSION_DAYS = 400
"""Longer than a session may wait and run."""
_CLOCK_TOLERANCE = timedelta(days=1)


def host_name(address: str, submission: str) -> str:
    """The name of the session at this IP address of its node."""
    label = re.sub("[.:]", "-", ipaddress.ip_address(address).exploded)
    return f"{label}.{submission}.{DOMAIN}"


def address_of(host: str) -> str | None:
    """The IP address in a session's name; None for any other host."""
    match = _NAME.fullmatch(host)
    if not match:
        return None
    return match[1].replace("-", "." if match[1].count("-") == 3 else ":")


class SessionCertificates:
    """The hub's own certificate authority, which signs nothing but names of sessions.

    Its key stays in `folder`. `public_file` has its certificate, for the proxy.
    """

    def __init__(self, folder: Path, public_file: Path | None = None) -> None:
        self._file = folder / "session-authority.pem"
        self._public_file = public_file or folder / "session-authority.crt"

    @cached_property
    def _authority(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            text = _new_authority()
            _write(self._file, text, 0o600)
        try:
            key = serialization.load_pem_private_key(text, None)
            certificate = x509.load_pem_x509_certificate(text)
        except ValueError as error:
            raise ConfigError(
                f"{self._file} is not the key and certificate that the hub wrote: {error}",
                "restore it from a backup, or remove it: sessions that run now are then lost",
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self._file} has a key of another kind", "remove it")
        return key, certificate

    def publish(self) -> None:
        """Write the certificate for the proxy, and make the key if there is none yet."""
        _write(self._public_file, _pem(self._authority[1]), 0o644)

    def issue(self, submission: str) -> str:
        """The key and certificate of a session, in one file."""
        authority_key, authority = self._authority
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.DNSName(f"*.{submission}.{DOMAIN}")
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        certificate = (
            _builder(f"session {submission}", authority.subject, key, _SESSION_DAYS)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(usage, critical=False)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )
        return (_key_pem(key) + _pem(certificate)).decode()

    def connector_options(self) -> dict[str, Any]:
        """Options of JupyterHub's HTTP client, with which it finds sessions and checks them."""
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=_pem(self._authority[1]).decode())
        return _Uncopied(ssl=context, resolver=SessionResolver())


class SessionResolver(AbstractResolver):
    """Finds sessions by the address in their names, and other hosts as usual."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return await ThreadedResolver().resolve(address_of(host) or host, port, family)

    async def close(self) -> None:
        """Nothing is open between questions."""


class NoCookies(DummyCookieJar):
    """For JupyterHub's HTTP client: a session could set cookies for the names of all sessions.

    Can be made without an event loop, as when the hub is configured.
    """

    def __init__(self) -> None:
        pass


class _Uncopied(dict[str, Any]):
    """traitlets copies the values of a configuration, and a TLS context cannot be copied."""

    def __deepcopy__(self, memo: Any) -> "_Uncopied":
        return self


def _new_authority() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("Carme sessions")
    certificate = (
        _builder("Carme sessions", subject, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(DOMAIN)], None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key) + _pem(certificate)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, text: bytes, mode: int) -> None:
    try:
        write(path, text.decode(), mode=mode)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            "the hub's user must own its working folder",
        ) from error
