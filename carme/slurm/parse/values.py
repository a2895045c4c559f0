"""Single values: total functions, because a field of a new release must not end a whole read."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from carme.errors import InputError
from carme.slurm.hostlist import expand
from carme.units import parse_memory_bytes, parse_slurm_seconds

MEBIBYTE = 2**20
_NOTHING = {"", "(null)", "null", "n/a", "none", "unknown", "not_set", "none assigned"}
# Slurm's "no value" and "infinite" in 32 and 64 bits; signed readings of them are negative.
_SENTINELS = {2**32 - 1, 2**32 - 2, 2**64 - 1, 2**64 - 2}


def clean(text: str) -> str:
    """`text` without blanks around it; empty for Slurm's words for nothing."""
    stripped = text.strip()
    return "" if stripped.lower() in _NOTHING else stripped


def names(text: str, everybody: str = "ALL") -> tuple[str, ...]:
    """The names in a comma list; empty for nothing and for `ALL`."""
    wanted = clean(text)
    if wanted.upper() == everybody:
        return ()
    return tuple(dict.fromkeys(part.strip() for part in wanted.split(",") if part.strip()))


def hosts(text: str) -> tuple[str, ...]:
    """The nodes in a host list; none when it cannot be read."""
    try:
        return expand(clean(text))
    except InputError:
        return ()


def integer(text: str) -> int | None:
    """A plain number, or None (`UNLIMITED`, `N/A`, nonsense)."""
    try:
        value = int(text.strip()[:25])
    except ValueError:
        return None
    return None if value in _SENTINELS or value < 0 else value


def seconds(text: str) -> int | None:
    """Seconds in one of Slurm's time forms; None for no limit and for nonsense."""
    try:
        return parse_slurm_seconds(text)
    except InputError:
        return None


def memory(text: str, default_unit: str = "M") -> int | None:
    """Bytes; None for `UNLIMITED` and nonsense."""
    try:
        return parse_memory_bytes(text.rstrip("cn"), default_unit)
    except (InputError, OverflowError):
        return None


def unix_time(text: str) -> int | None:
    """Unix seconds in `2024-01-31T12:00:00` (UTC: the commands are told so) or in digits."""
    word = text.strip()
    if word.isdecimal() and len(word) < 12:
        return int(word) or None
    try:
        moment = datetime.fromisoformat(word)
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        return None


def exit_pair(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal in `1:9`."""
    code, _, signal = text.partition(":")
    return integer(code), integer(signal)


def json_text(raw: Mapping[str, Any], key: str) -> str:
    """A text field; lists are joined by commas, everything else is empty."""
    value = raw.get(key)
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return clean(value) if isinstance(value, str) else ""


def json_list(raw: Mapping[str, Any], key: str) -> list[str]:
    """The texts in a list."""
    value = raw.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def json_raw(raw: Mapping[str, Any], key: str) -> str:
    """A text that a user chose, as it is: a job may be called `none`."""
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def json_words(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A field that is one word, a comma list or a JSON list, depending on the release."""
    return names(json_text(raw, key))


def json_number(raw: Mapping[str, Any], *keys: str) -> int | None:
    """The first of `keys` that is a number: plain, or `{"set": …, "infinite": …, "number": …}`."""
    for key in keys:
        value: Any = raw.get(key)
        if isinstance(value, dict):
            set_ = value.get("set", True) and not value.get("infinite")
            value = value.get("number") if set_ else None
        if isinstance(value, str):
            value = integer(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value != value or value < 0 or value >= 2**63 or int(value) in _SENTINELS:
            continue
        return int(value)
    return None


def json_time(raw: Mapping[str, Any], key: str) -> int | None:
    """A time field; Slurm writes 0 for none."""
    return json_number(raw, key) or None


def json_map(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object; empty when it is missing or something else."""
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def json_objects(answer: object, key: str) -> list[Mapping[str, Any]]:
    """The objects in the list `key` of an answer."""
    items = answer.get(key) if isinstance(answer, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
