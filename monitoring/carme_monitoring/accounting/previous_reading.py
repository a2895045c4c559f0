"""What the last charge read: gains are differences from it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from carme_monitoring.collectors.cgroup import JobUse
from carme_monitoring.collectors.host import Host
from carme_monitoring.collectors.network import Traffic


@dataclass
class PreviousReading:
    """The readings of the last charge; a new one has none."""

    at_ns: int = -1
    busy_seconds: float | None = None
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    cpu_rate: dict[int, float] = field(default_factory=dict)
    traffic: tuple[int, int] | None = None

    def seconds(self, at_ns: int) -> float:
        """From there to `at_ns`; 0 if there was none."""
        return max(0.0, (at_ns - self.at_ns) / 1e9) if self.at_ns >= 0 else 0.0

    def fraction(self, from_ns: int, to_ns: int, at_ns: int) -> float:
        """How much of the time from there to `at_ns` lies between the two; 0 if there was none."""
        if self.at_ns < 0 or at_ns <= self.at_ns:
            return 0.0
        return max(0, to_ns - max(from_ns, self.at_ns)) / (at_ns - self.at_ns)

    def busy_gain(self, host: Host) -> float | None:
        """Processor time of the whole node since then."""
        if self.busy_seconds is None:
            return None
        return max(0.0, host.busy_seconds - self.busy_seconds)

    def cpu_gains(
        self, uses: Mapping[int, JobUse], live: Iterable[int], at_ns: int
    ) -> dict[int, float]:
        """Processor time by job since then.

        A job's cgroup is gone before its epilog runs; its last stretch goes on at the rate it
        had, because otherwise it would be charged to the system.
        """
        gains = {
            jobid: max(0.0, use.cpu_seconds - self.cpu_seconds.get(jobid, 0.0))
            for jobid, use in uses.items()
            if use.cpu_seconds is not None
        }
        for jobid in live:
            if jobid not in gains and jobid in self.cpu_rate:
                gains[jobid] = self.cpu_rate[jobid] * self.seconds(at_ns)
        return gains

    def traffic_gain(self, traffic: Traffic | None) -> tuple[int, int] | None:
        """Bytes received and sent since then; None if either end is unknown."""
        if traffic is None or self.traffic is None:
            return None
        received, sent = self.traffic
        return max(0, traffic.receive_bytes - received), max(0, traffic.send_bytes - sent)

    def remember(
        self,
        at_ns: int,
        uses: Mapping[int, JobUse],
        host: Host | None,
        traffic: Traffic | None,
    ) -> None:
        """Take these readings for the next difference; what could not be read stays."""
        seconds = self.seconds(at_ns)
        for jobid, use in uses.items():
            if use.cpu_seconds is None:
                continue
            if jobid in self.cpu_seconds and seconds > 0:
                gained = max(0.0, use.cpu_seconds - self.cpu_seconds[jobid])
                self.cpu_rate[jobid] = gained / seconds
            self.cpu_seconds[jobid] = use.cpu_seconds
        self.at_ns = at_ns
        if host:
            self.busy_seconds = host.busy_seconds
        if traffic:
            self.traffic = (traffic.receive_bytes, traffic.send_bytes)

    def forget(self, jobid: int) -> None:
        """The job is over and its series have ended."""
        self.cpu_seconds.pop(jobid, None)
        self.cpu_rate.pop(jobid, None)

    def save(self) -> dict[str, Any]:
        """For the state file."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "PreviousReading":
        """What `save` gave, after JSON made the job ids words."""
        return cls(
            saved["at_ns"],
            saved["busy_seconds"],
            {int(jobid): value for jobid, value in saved["cpu_seconds"].items()},
            {int(jobid): value for jobid, value in saved["cpu_rate"].items()},
            tuple(saved["traffic"]) if saved["traffic"] else None,
        )
