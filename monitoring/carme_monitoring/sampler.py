"""Looks at the GPUs once a second, and at 20 Hz while a job wants a profile.

A collection every 15 s would call a job idle that happened to wait for data just then; a look a
second costs nothing and makes idle time and mean utilisation honest.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from carme.jobs.bursts import Bursts, bursts

SIGNALS = ("gpu", "gpu_memory", "send", "receive")
IDLE_BELOW = 0.01
"""Utilisation below one percent is idle: the driver itself shows up as less."""
PROFILE_HZ = 20
_WINDOW_SECONDS = 300
GpuSample = tuple[float | None, int | None, int | None]
"""Utilisation, energy counter in mJ, memory in bytes."""


@dataclass
class GpuActivity:
    """What was seen of a GPU since it was last asked for."""

    seconds: float = 0.0
    idle_seconds: float = 0.0
    utilised_seconds: float = 0.0
    idle_mj: int = 0

    def add(self, other: "GpuActivity") -> None:
        """Add what was seen later."""
        self.seconds += other.seconds
        self.idle_seconds += other.idle_seconds
        self.utilised_seconds += other.utilised_seconds
        self.idle_mj += other.idle_mj

    @property
    def utilisation(self) -> float | None:
        return self.utilised_seconds / self.seconds if self.seconds else None

    @property
    def idle_part(self) -> float:
        return self.idle_seconds / self.seconds if self.seconds else 0.0


@dataclass
class BurstProfile:
    """A job's last five minutes at 20 Hz."""

    gpus: tuple[str, ...]
    samples: dict[str, deque[float]] = field(
        default_factory=lambda: {
            name: deque(maxlen=PROFILE_HZ * _WINDOW_SECONDS) for name in SIGNALS
        }
    )

    def figures(self) -> dict[str, Bursts]:
        """The three figures of every signal that was seen."""
        return {
            name: bursts(list(seen), 1 / PROFILE_HZ) for name, seen in self.samples.items() if seen
        }


class GpuSampler:
    """The thread; `drain` and `figures` are for the collection."""

    def __init__(
        self,
        look: Callable[[], Mapping[str, GpuSample]],
        traffic: Callable[[], tuple[int, int]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._traffic, self._now = look, traffic, now
        self._lock = threading.Lock()
        self._seen: dict[str, GpuActivity] = {}
        self._last: dict[str, tuple[float, int | None]] = {}
        self._profiles: dict[int, BurstProfile] = {}
        self._bytes: tuple[float, int, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="sampler")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()

    def follow(self, jobs: Mapping[int, Sequence[str]]) -> None:
        """Profile these jobs (by the GPUs they hold) and no others."""
        with self._lock:
            for jobid in [jobid for jobid in self._profiles if jobid not in jobs]:
                del self._profiles[jobid]
            for jobid, gpus in jobs.items():
                if jobid not in self._profiles:
                    self._profiles[jobid] = BurstProfile(tuple(gpus))

    def drain(self) -> dict[str, GpuActivity]:
        """What was seen of each GPU since the last call, up to this moment."""
        self.step()
        with self._lock:
            seen, self._seen = self._seen, {}
        return seen

    def figures(self) -> dict[int, dict[str, Bursts]]:
        """The profiles' figures by job."""
        with self._lock:
            profiles = dict(self._profiles)
        return {jobid: profile.figures() for jobid, profile in profiles.items()}

    def step(self) -> None:
        """Look once. Energy and time since the look before count as the GPU is now."""
        found = self._look()
        sent, received = self._traffic() if self._profiles else (0, 0)
        now = self._now()
        with self._lock:
            for gpu, (utilisation, energy, _) in found.items():
                self._count(gpu, utilisation, energy, now)
            if self._profiles:
                self._profile(found, now, sent, received)

    def _count(self, gpu: str, utilisation: float | None, energy: int | None, now: float) -> None:
        before, last_energy = self._last.get(gpu, (now, energy))
        self._last[gpu] = (now, energy)
        seconds = now - before
        if utilisation is None or seconds <= 0:
            return
        seen = self._seen.setdefault(gpu, GpuActivity())
        seen.seconds += seconds
        seen.utilised_seconds += utilisation * seconds
        if utilisation < IDLE_BELOW:
            seen.idle_seconds += seconds
            if energy is not None and last_energy is not None:
                seen.idle_mj += max(0, energy - last_energy)

    def _profile(
        self, found: Mapping[str, GpuSample], now: float, sent: int, received: int
    ) -> None:
        last, self._bytes = self._bytes, (now, sent, received)
        seconds = now - last[0] if last else 0.0
        send = max(0, sent - last[1]) / seconds if last and seconds > 0 else 0.0
        receive = max(0, received - last[2]) / seconds if last and seconds > 0 else 0.0
        for profile in self._profiles.values():
            mine = [found[gpu] for gpu in profile.gpus if gpu in found]
            profile.samples["gpu"].append(sum(sample[0] or 0.0 for sample in mine))
            profile.samples["gpu_memory"].append(float(sum(sample[2] or 0 for sample in mine)))
            profile.samples["send"].append(send)
            profile.samples["receive"].append(receive)

    def _loop(self) -> None:
        due = self._now()
        while not self._stop.is_set():
            try:
                self.step()
            except Exception:  # the GPUs are away; the gpu collector counts that
                self._stop.wait(5)
            due = max(due + (1 / PROFILE_HZ if self._profiles else 1.0), self._now())
            self._stop.wait(due - self._now())
