"""Single values of Slurm's answers.

Every function takes text or any JSON value, and returns an empty value instead of an error: one
field of a new release must not end a whole read.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from carme.errors import InputError
from carme.slurm.gres import memory_of_tres, parse_tres
from carme.slurm.hostlist import expand
from carme.units import parse_memory_bytes, parse_slurm_seconds

_MEBIBYTE = 2**20
_EMPTY = {"", "(null)", "null", "n/a", "none", "unknown", "not_set", "none assigned"}
# Slurm's 32-bit "no value" and "infinite". Those of 64 bits are beyond _MAX_NUMBER.
_SENTINELS = {2**32 - 1, 2**32 - 2}
_MAX_NUMBER = 2**63


def clean(text: str) -> str:
    """`text` without blanks around it; empty for Slurm's words for an empty field."""
    stripped = text.strip()
    return "" if stripped.lower() in _EMPTY else stripped


def text(value: object) -> str:
    """A cleaned text; the items of a list with commas between them."""
    if isinstance(value, str):
        return clean(value)
    return ",".join(texts(value)) if value else ""


def texts(value: object) -> list[str]:
    """The texts in a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def user_text(value: object) -> str:
    """A text that a user chose, unchanged: a job may be called `none`."""
    return value if isinstance(value, str) else ""


def comment(value: object) -> str:
    """A job's comment, which newer releases nest beside the administrator's."""
    return user_text(value.get("job") if isinstance(value, dict) else value)


def names(value: object) -> tuple[str, ...]:
    """The names in a comma list or JSON list; empty for `ALL`."""
    return _split_names(value if isinstance(value, str) else text(value))


@lru_cache(maxsize=4096)  # the nodes of a cluster repeat a few lists
def _split_names(joined: str) -> tuple[str, ...]:
    cleaned = clean(joined)
    if cleaned.upper() == "ALL":
        return ()
    return tuple(dict.fromkeys(part.strip() for part in cleaned.split(",") if part.strip()))


def hosts(value: object) -> tuple[str, ...]:
    """The nodes in a host list."""
    return _expand(text(value))


@lru_cache(maxsize=1024)  # many jobs run on the same nodes
def _expand(hostlist: str) -> tuple[str, ...]:
    try:
        return expand(hostlist)
    except InputError:
        return ()


def number(value: object) -> int | None:
    """A number: plain, in digits, or `{"set": …, "infinite": …, "number": …}`; at least 0."""
    if isinstance(value, dict):
        is_finite = value.get("set", True) and not value.get("infinite")
        value = value.get("number") if is_finite else None
    if isinstance(value, str):
        try:
            value = int(value.strip()[:25])
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # NaN is not within the bounds either.
    return int(value) if 0 <= value < _MAX_NUMBER and int(value) not in _SENTINELS else None


def count(value: object) -> int:
    """A number; 0 for none."""
    return number(value) or 0


def positive(value: object) -> int | None:
    """A number above 0: Slurm writes 0 for no array and slurmrestd for no limit."""
    return number(value) or None


def limit_seconds(value: object) -> int | None:
    """Seconds of a time limit: minutes as a number, or a text in one of Slurm's time forms."""
    if isinstance(value, str) and not value.isdecimal():
        try:
            return parse_slurm_seconds(value)
        except InputError:
            return None
    minutes = number(value)
    return None if minutes is None else minutes * 60


def positive_seconds(value: object) -> int | None:
    """Seconds of a time limit; None for 0, which Slurm's database and slurmrestd write for none."""
    return limit_seconds(value) or None


def cpu_seconds(value: object) -> int | None:
    """Seconds of CPU time: `01:30.500`, or `{"seconds": …}`."""
    if isinstance(value, str):
        return limit_seconds(value)
    return number(value.get("seconds")) if isinstance(value, dict) else None


def memory(value: object) -> int | None:
    """Bytes in a text with a unit, or in a number of MiB; None for `UNLIMITED`."""
    return text_memory(value) if isinstance(value, str) else count(value) * _MEBIBYTE or None


@lru_cache(maxsize=4096)  # the nodes of a cluster repeat a few amounts
def text_memory(value: str, default_unit: str = "M") -> int | None:
    """Bytes in `2G` or `1500K`; older releases of sacct add `c` (per CPU) or `n` (per node)."""
    try:
        return parse_memory_bytes(value.rstrip("cn"), default_unit)
    except (InputError, OverflowError):
        return None


def used_memory(value: object) -> int:
    """Bytes as `memory`; 0 for none."""
    return memory(value) or 0


def tres_amounts(value: object) -> dict[str, int]:
    """The whole amounts in a TRES list, `mem` in bytes."""
    tres = parse_tres(text(value))
    amounts = {key: amount for key, word in tres.items() if (amount := number(word)) is not None}
    if "mem" in tres:
        # A limit of zero is a limit; one that cannot be read is none.
        amounts.pop("mem", None)
        if tres["mem"] == "0" or memory_of_tres(tres):
            amounts["mem"] = memory_of_tres(tres)
    return amounts


def unix_time(value: object) -> int | None:
    """Unix seconds: a number, or a text as `2024-01-31T12:00:00` (commands print UTC)."""
    if not isinstance(value, str):
        return number(value) or None
    word = value.strip()
    if word.isdecimal() and len(word) < 12:
        return int(word) or None
    try:
        moment = datetime.fromisoformat(word)
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError):
        return None


def exit_status(value: object) -> tuple[int | None, int | None]:
    """Exit code and signal: in `1:9`, in a wait status, or in newer releases' object."""
    if isinstance(value, dict):
        signal = section(value, "signal")
        # A job that a signal ended has no code: the commands print 0 then.
        signal_number = number(signal.get("id")) or number(signal.get("signal_id"))
        return count(value.get("return_code")), signal_number or 0
    if isinstance(value, str) and ":" in value:
        code, _, signal_text = value.partition(":")
        return number(code), number(signal_text)
    status = number(value)
    return (None, None) if status is None else (status >> 8, status & 0x7F)


def section(record: object, key: str) -> Mapping[str, Any]:
    """A nested object; empty when it is missing or something else."""
    value = record.get(key) if isinstance(record, dict) else None
    return value if isinstance(value, dict) else {}


def objects(answer: object, key: str) -> list[dict[str, Any]]:
    """The objects in the list `key` of an answer."""
    items = answer.get(key) if isinstance(answer, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
