"""Addresses of databases in carme.toml, which every user of the machine can read."""

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator


def check_no_password(url: str) -> str:
    """The URL; ValueError if it holds a password."""
    parts = urlsplit(url)
    if parts.password or "password" in parse_qs(parts.query):
        raise ValueError(
            "every user can read carme.toml, so it must hold no password: write it into a libpq"
            " password file that only the service's user can read, and end the URL with"
            " ?passfile=/etc/carme/NAME.pgpass"
        )
    return url


DatabaseUrl = Annotated[str, AfterValidator(check_no_password)]
"""An SQLAlchemy URL without a password."""
