"""Text to numbers and back: memory, time, energy, power, emissions.

SI base units inside, units in every name.
"""

import re

from carme.errors import InputError

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(?:\.\d+)?")


def parse_memory_bytes(text: str, default_unit: str = "") -> int:
    """Bytes in `16G`, `512M`, `1.5T`, `2 GiB`; prefixes are powers of 1024, as in Slurm."""
    match = _MEMORY.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text!r} is not an amount of memory", "write it like 512M, 16G or 1.5T")
    return int(float(match[1]) * _BINARY[(match[2] or default_unit).upper()])


def format_bytes(count: float) -> str:
    """`1.5 GiB`: three digits at most, binary prefixes."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} PiB"


def parse_slurm_seconds(text: str) -> int | None:
    """Seconds in one of Slurm's six time forms; None for UNLIMITED and the like.

    Slurm reads `30` and `30:00` as minutes, `1:30:00` as hours and `1-12` as days and hours.
    """
    value = text.strip()
    if value.upper() in {"UNLIMITED", "INFINITE", "PARTITION_LIMIT", "NOT_SET", "NONE", "N/A", ""}:
        return None
    match = _SLURM_TIME.fullmatch(value)
    if not match:
        raise InputError(
            f"{text!r} is not a time", "write it like 90 (minutes), 1:30:00 or 1-12:00"
        )
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        return days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return (first or 0) * 3600 + (second or 0) * 60 + third
    return (first or 0) * 60 + (second or 0)


def format_slurm_time(seconds: int) -> str:
    """`D-HH:MM:SS`, the one unambiguous form of Slurm's times."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def hours_within(seconds: int) -> float:
    """Hours to two digits, rounded down: what can be asked for within a limit."""
    return seconds // 36 / 100


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`: two units at most, for people."""
    remaining = round(seconds)
    if abs(seconds) < 10 and seconds != remaining:
        return f"{seconds:.1f} s"
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def format_joules(joules: float, like: float | None = None) -> str:
    """`820 J`, `12.3 kJ`, `1.4 kWh`, `16.3 MWh`: joules while they are few, kWh as on a bill.

    `like` chooses the unit, for what is read beside it.
    """
    size = abs(joules if like is None else like)
    if size < 1000:
        return f"{joules:.3g} J"
    if size < 360_000:
        return f"{joules / 1000:.3g} kJ"
    if size < 3.6e9:
        return f"{joules / 3.6e6:.3g} kWh"
    return f"{joules / 3.6e9:.3g} MWh"


def format_watts(watts: float) -> str:
    """`245 W`, `13.9 kW`."""
    return f"{watts / 1000:.3g} kW" if watts >= 1000 else f"{watts:.3g} W"


def format_emissions(grams: float) -> str:
    """`820 g`, `13.9 kg`, `1.56 t` of CO₂ equivalents."""
    for size, unit in ((1e6, "t"), (1e3, "kg")):
        if grams >= size:
            return f"{grams / size:.3g} {unit} CO₂e"
    return f"{grams:.3g} g CO₂e"


def counted(number: int, noun: str) -> str:
    """`1 node`, `8 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
