"""The exact energy of one virtual GPU, and the record of the jobs that used it.

Energy is an integer of picojoules (milliwatts times nanoseconds), so the counter always equals
the sum of the record.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from carme.local.vgpu.state import MeterState

PJ_PER_MJ = 10**9
PJ_PER_J = 10**12
_MAX_RECORD_BYTES = 16 * 2**20


class Span(TypedDict):
    """A line of the record: a period in which one job, or none, held one GPU."""

    node: str
    gpu: int
    uuid: str
    span: int
    jobid: int | None
    joules: float
    picojoules: int
    counter_picojoules: int
    since: float
    until: float


@dataclass
class Meter:
    """The energy counter of a card, and the current span."""

    node: str
    gpu: int
    uuid: str
    energy_pj: int = 0
    span: int = 1
    jobid: int = 0
    """0: no job."""
    span_since_ns: int = 0
    span_start_pj: int = 0
    power_mw: int = 0
    at_ns: int = 0
    """CLOCK_BOOTTIME of the last advance."""

    def advance(self, to_ns: int, power_mw: int) -> None:
        """Add `power_mw` for the time since the last advance; an earlier `to_ns` adds nothing."""
        self.energy_pj += power_mw * max(0, to_ns - self.at_ns)
        self.at_ns = max(self.at_ns, to_ns)
        self.power_mw = power_mw

    def current(self, time_ns: int) -> Span:
        """The open span until now."""
        used = self.energy_pj - self.span_start_pj
        return Span(
            node=self.node, gpu=self.gpu, uuid=self.uuid, span=self.span, jobid=self.jobid or None,
            joules=used / PJ_PER_J, picojoules=used, counter_picojoules=self.energy_pj,
            since=self.span_since_ns / 1e9, until=time_ns / 1e9,
        )  # fmt: skip

    def hand_over(self, jobid: int, time_ns: int) -> Span:
        """End the current span and begin one for `jobid`; returns the ended span."""
        ended = self.current(time_ns)
        self.span += 1
        self.jobid, self.span_since_ns, self.span_start_pj = jobid, time_ns, self.energy_pj
        return ended

    def save(self) -> MeterState:
        """The state to keep across restarts of the daemon."""
        state = MeterState(
            span=self.span, span_jobid=self.jobid, span_since_ns=self.span_since_ns,
            power_mw=self.power_mw, at_ns=self.at_ns,
        )  # fmt: skip
        state.energy_mj, state.energy_rest_pj = divmod(self.energy_pj, PJ_PER_MJ)
        state.span_start_mj, state.span_start_rest_pj = divmod(self.span_start_pj, PJ_PER_MJ)
        return state

    def restore(self, state: MeterState, last: Span | None) -> None:
        """Continue from `state`; `last` is the card's last line in the record.

        If a daemon was killed after it wrote the line and before it saved the state, the line is
        right and the state is older.
        """
        self.energy_pj = state.energy_mj * PJ_PER_MJ + state.energy_rest_pj
        self.span, self.jobid, self.at_ns = state.span, state.span_jobid, state.at_ns
        self.span_since_ns, self.power_mw = state.span_since_ns, state.power_mw
        self.span_start_pj = state.span_start_mj * PJ_PER_MJ + state.span_start_rest_pj
        if last and last["span"] >= self.span:
            self.energy_pj = max(self.energy_pj, last["counter_picojoules"])
            self.span, self.jobid = last["span"] + 1, 0
            self.span_since_ns = round(last["until"] * 1e9)
            self.span_start_pj = last["counter_picojoules"]


class EnergyRecord:
    """The file of a node's ended spans, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, spans: list[Span]) -> None:
        """Write the spans; a file that is too large is renamed first."""
        if not spans:
            return
        if self.path.exists() and self.path.stat().st_size > _MAX_RECORD_BYTES:
            self.path.replace(self.path.with_suffix(".old.jsonl"))
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(span) + "\n" for span in spans))
        self.path.chmod(0o600)

    def read(self) -> list[Span]:
        """Every complete line; a line that a crash cut off is left out."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError:
            return []
        spans: list[Span] = []
        for line in text.splitlines():
            try:
                spans.append(json.loads(line))
            except ValueError:
                continue
        return spans
