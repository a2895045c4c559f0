"""The web configuration file: TLS and users, in the form of Prometheus' exporter-toolkit."""

import hashlib
import hmac
import os
import secrets
import ssl
import threading
import time
from pathlib import Path
from typing import Annotated, Literal

import bcrypt
import yaml
from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from carme.errors import ConfigError
from carme.system.guess_limits import GuessLimiter
from carme.validation import explain_first

_REMEMBERED = 64
_LONG = 32
"""Characters of a password that Carme or Ansible made."""
_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1_2,  # older versions are not secure
    "TLS11": ssl.TLSVersion.TLSv1_2,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tls(_Section):
    """`tls_server_config`."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "NoClientCert",
        "RequestClientCert",
        "RequireAnyClientCert",
        "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = "NoClientCert"
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"


class Http(_Section):
    """`http_server_config`: headers that every answer gets."""

    headers: dict[str, str] = Field(default_factory=dict)


class WebConfig(_Section):
    """The whole file."""

    tls_server_config: Tls | None = None
    http_server_config: Http = Http()
    basic_auth_users: dict[
        Annotated[str, Field(min_length=1)],
        Annotated[str, Field(pattern=r"^\$2[aby]\$\d\d\$.{53}$")],
    ] = Field(default_factory=dict)
    """User → bcrypt hash of the password."""


def load(path: Path) -> WebConfig:
    """The configuration in `path`; relative file names are relative to it, as in the toolkit."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        config = WebConfig.model_validate(content)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; the exporter requires credentials by default",
            f"carme-exporter web-config {path} makes one; --open serves everybody",
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain_first(error)}") from None
    tls = config.tls_server_config
    if tls:
        changed = {
            name: path.parent / value
            for name in ("cert_file", "key_file", "client_ca_file")
            if (value := getattr(tls, name)) is not None
        }
        config = config.model_copy(update={"tls_server_config": tls.model_copy(update=changed)})
    return config


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What the server needs to speak TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = max(_VERSIONS[tls.min_version], ssl.TLSVersion.TLSv1_2)
    context.maximum_version = _VERSIONS[tls.max_version]
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_ca_file:
            context.load_verify_locations(tls.client_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS: {tls.cert_file}, {tls.key_file}: {error}") from error
    if tls.client_auth_type in ("RequireAndVerifyClientCert", "RequireAnyClientCert"):
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.client_auth_type == "VerifyClientCertIfGiven":
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Users:
    """Checks passwords. bcrypt is slow by design, so results are remembered by a keyed digest, and
    the time for wrong passwords is limited."""

    def __init__(self, users: dict[str, str], guesses: GuessLimiter | None = None) -> None:
        self._hashes = {name: hashed.encode() for name, hashed in users.items()}
        self._guesses = guesses or GuessLimiter()
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        """By user: the digest of the right password, once it was sent."""
        self._wrong: LRUCache[bytes, None] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()
        self._checking = threading.Lock()

    def is_right(self, user: str, password: str, peer: str = "") -> bool:
        """Whether the user has this password; an unknown user takes as long as a known one.
        TooManyGuessesError if it was not checked: `peer` sent too many wrong ones."""
        text = f"{len(user)}:{user}:{password}".encode()
        digest = hmac.new(self._key, text, hashlib.sha256).digest()
        with self._lock:
            if hmac.compare_digest(self._right.get(user, b""), digest):
                return True
            if digest in self._wrong:
                return False
        with self._checking:  # one check at a time, or each connection would get a core
            self._guesses.check(peer)
            began = time.thread_time()
            is_right = self._matches(user, password)
            if not is_right:
                self._guesses.charge(peer, time.thread_time() - began)
        with self._lock:
            if is_right:
                self._right[user] = digest
            else:
                self._wrong[digest] = None
        return is_right

    def _matches(self, user: str, password: str) -> bool:
        hashed = self._hashes.get(user)
        compared = hashed or next(iter(self._hashes.values()))
        # bcrypt takes at most 72 bytes; longer ones are refused by newer releases.
        return bcrypt.checkpw(password.encode()[:72], compared) and hashed is not None


def write(path: Path, user: str = "prometheus", password: str | None = None) -> str:
    """Write a file with the password of `user`; returns the password."""
    chosen = password or secrets.token_urlsafe(24)
    hashed = bcrypt.hashpw(chosen.encode(), bcrypt.gensalt(_rounds(chosen))).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"basic_auth_users": {user: hashed}})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w") as file:
        file.write(f"# Who may read /metrics; the hash is bcrypt.\n{text}")
    return chosen


def is_current(path: Path, user: str, password: str) -> bool:
    """Whether the file at `path` is as `write` would make it; False if there is none."""
    try:
        hashed = load(path).basic_auth_users.get(user, "")
    except ConfigError:
        return False
    has_rounds = hashed[4:6] == f"{_rounds(password):02}"
    return has_rounds and bcrypt.checkpw(password.encode(), hashed.encode())


def _rounds(password: str) -> int:
    """bcrypt's rounds slow down guessing. Nobody guesses a long random password: there they would
    only cost processor time, 72 ms for each wrong password that somebody sends."""
    return 4 if len(password) >= _LONG else 10
