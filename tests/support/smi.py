"""GPUs from the text of nvidia-smi: a replay of captures, for tests and users' reports."""

import csv
import re
from collections.abc import Iterator

from carme_monitoring.gpus import GpuProcess, GpuReading, MigSlice

_SECTION = re.compile(
    r"^#{20,}\n# (?P<title>[^\n]* :: [^\n]*)\n(?:# [^\n]*\n)*#{20,}\n", re.MULTILINE
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MISSING = ("n/a", "[n/a]", "not supported", "[not supported]", "unknown error", "deprecated")
_PROFILE = re.compile(r"MIG (\d+)(?:c\.\d+)?g\.\S+\s+Device\s+\d+:\s+\(UUID: (\S+)\)")
_THROTTLE = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "hardware_thermal",
    "hw_power_brake_slowdown": "power_brake",
}


def sections(capture: str) -> dict[str, str]:
    """The capture's parts by title, for instance `load :: query (-q)`."""
    marks = list(_SECTION.finditer(capture))
    ends = [*(mark.start() for mark in marks[1:]), len(capture)][: len(marks)]
    return {
        mark["title"].strip(): capture[mark.end() : end].strip("\n")
        for mark, end in zip(marks, ends, strict=True)
    }


def gpus(capture: str, phase: str = "load") -> list[GpuReading]:
    """The GPUs of a capture, while idle or under load."""
    texts = sections(capture)

    def section(start: str) -> str:
        return next((text for title, text in texts.items() if title.startswith(start)), "")

    return parse(
        section(f"{phase} :: query-gpu"),
        details=section(f"{phase} :: query (-q)"),
        listing=section("capabilities :: list"),
        apps=section(f"{phase} :: query-compute-apps"),
    )


def parse(query: str, details: str = "", listing: str = "", apps: str = "") -> list[GpuReading]:
    """The GPUs in the CSV of --query-gpu; `-q`, `-L` and the compute apps add missing values."""
    tree = _details(details)
    running: dict[str, list[GpuProcess]] = {}
    for row in _rows(apps):
        memory = _number(row.get("used_gpu_memory", ""))
        process = GpuProcess(
            int(_number(row.get("pid", "")) or 0), None if memory is None else int(memory * 2**20)
        )
        running.setdefault(row.get("gpu_uuid", ""), []).append(process)
    return [_gpu(row, tree, listing, running) for row in _rows(query)]


def _gpu(
    row: dict[str, str],
    tree: dict[str, list[tuple[str, str]]],
    listing: str,
    running: dict[str, list[GpuProcess]],
) -> GpuReading:
    def number(name: str, factor: float = 1) -> float | None:
        value = _number(row.get(name, ""))
        return None if value is None else value * factor

    def integer(name: str, factor: int = 1) -> int | None:
        value = _number(row.get(name, ""))
        return None if value is None else round(value * factor)

    bus_id, uuid = row.get("pci.bus_id", ""), row.get("uuid", "")
    detail = tree.get(bus_id, [])
    has_mig = row.get("mig.mode.current", "").lower() == "enabled"
    return GpuReading(
        index=integer("index") or 0,
        uuid=uuid,
        name=row.get("name", ""),
        minor=_whole(_find(detail, "/Minor Number")),
        bus_id=bus_id,
        driver=row.get("driver_version", ""),
        utilisation=number("utilization.gpu", 0.01),
        memory_utilisation=number("utilization.memory", 0.01),
        memory_total_bytes=integer("memory.total", 2**20),
        memory_used_bytes=integer("memory.used", 2**20),
        memory_reserved_bytes=integer("memory.reserved", 2**20),
        power_watts=number("power.draw"),
        power_limit_watts=number("enforced.power.limit"),
        temperature_celsius=number("temperature.gpu"),
        clocks_hertz={
            clock: hertz
            for clock in ("graphics", "sm", "memory", "video")
            if (hertz := integer(f"clocks.current.{clock}", 10**6)) is not None
        },
        throttle=frozenset(
            reason
            for name, reason in _THROTTLE.items()
            if row.get(f"clocks_event_reasons.{name}", "").lower() == "active"
        ),
        ecc_corrected=integer("ecc.errors.corrected.aggregate.total"),
        ecc_uncorrected=integer("ecc.errors.uncorrected.aggregate.total"),
        pcie_send=_kilobytes(_find(detail, "/Tx Throughput")),
        pcie_receive=_kilobytes(_find(detail, "/Rx Throughput")),
        mig=has_mig,
        slices=tuple(_slices(detail, listing)) if has_mig else (),
        processes=tuple(running.get(uuid, ())),
    )


def _slices(detail: list[tuple[str, str]], listing: str) -> Iterator[MigSlice]:
    totals = [value for path, value in detail if path.endswith("Shared FB Memory Usage/Total")]
    used = [value for path, value in detail if path.endswith("Shared FB Memory Usage/Used")]
    for index, profile in enumerate(_PROFILE.finditer(listing)):
        total = _number(totals[index]) if index < len(totals) else None
        used_mib = _number(used[index]) if index < len(used) else None
        yield MigSlice(
            profile[2],
            int(profile[1]) / 7,
            None if total is None else int(total * 2**20),
            None if used_mib is None else int(used_mib * 2**20),
        )


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Rows of a CSV section, without a truncated last line and without units in the header."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        return
    header = [re.sub(r" \[.*\]$", "", name.strip()) for name in lines[0].split(",")]
    for row in csv.reader(lines[1:], skipinitialspace=True):
        if len(row) == len(header):
            yield {name: value.strip() for name, value in zip(header, row, strict=True)}


def _details(text: str) -> dict[str, list[tuple[str, str]]]:
    """`-q` by GPU: (path by headings, value) in order."""
    details: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := re.match(r"GPU ([0-9A-Fa-f:.]+)\s*$", line):
            current = details.setdefault(match[1], [])
            path = []
            continue
        indent = len(line) - len(line.lstrip())
        name, _, value = (part.strip() for part in line.partition(" : "))
        while path and path[-1][0] >= indent:
            path.pop()
        if value:
            current.append(("/" + "/".join([step for _, step in path] + [name]), value))
        elif name:
            path.append((indent, name))
    return details


def _find(detail: list[tuple[str, str]], ending: str) -> str:
    return next((value for path, value in detail if path.endswith(ending)), "")


def _number(text: str) -> float | None:
    if text.strip().lower() in _MISSING or not (match := _NUMBER.match(text.strip())):
        return None
    return float(match[0])


def _whole(text: str) -> int | None:
    value = _number(text)
    return None if value is None else int(value)


def _kilobytes(text: str) -> int | None:
    value = _number(text)
    return None if value is None else round(value * 1000)
