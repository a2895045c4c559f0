"""Samples the GPUs once a second, and at 20 Hz while a job is profiled.

A collection every 15 s would count a job as idle that waits for data at that moment. A sample every
second is cheap and gives the right idle time and mean utilisation.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from carme.bursts import Bursts, bursts
from carme_monitoring.periodic_thread import PeriodicThread

SIGNALS = ("gpu", "gpu_memory", "send", "receive")
IDLE_BELOW = 0.01
"""Utilisation below one percent is idle: the driver alone causes less."""
PROFILE_HZ = 20
_WINDOW_SECONDS = 300
GpuSample = tuple[float | None, int | None, int | None]
"""Utilisation, energy counter in mJ, memory in bytes."""


@dataclass
class GpuActivity:
    """The activity of a GPU since the last `drain`."""

    seconds: float = 0.0
    idle_seconds: float = 0.0
    utilised_seconds: float = 0.0
    idle_mj: int = 0

    def add(self, other: "GpuActivity") -> None:
        """Add a later activity."""
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
            name: bursts(list(values), 1 / PROFILE_HZ)
            for name, values in self.samples.items()
            if values
        }


class GpuSampler(PeriodicThread):
    """The thread; `drain` and `figures` are for the collection."""

    def __init__(
        self,
        sample: Callable[[], Mapping[str, GpuSample]],
        traffic: Callable[[], tuple[int, int]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("sampler")
        self._sample, self._traffic, self._now = sample, traffic, now
        self._lock = threading.Lock()
        self._activity: dict[str, GpuActivity] = {}
        self._last: dict[str, tuple[float, int | None]] = {}
        self._profiles: dict[int, BurstProfile] = {}
        self._bytes: tuple[float, int, int] | None = None

    def follow(self, jobs: Mapping[int, Sequence[str]]) -> None:
        """Profile these jobs (by the GPUs they hold) and no others."""
        with self._lock:
            for jobid in [jobid for jobid in self._profiles if jobid not in jobs]:
                del self._profiles[jobid]
            for jobid, gpus in jobs.items():
                if jobid not in self._profiles:
                    self._profiles[jobid] = BurstProfile(tuple(gpus))

    def drain(self) -> dict[str, GpuActivity]:
        """Activity of each GPU since the last call."""
        self.step()
        with self._lock:
            activity, self._activity = self._activity, {}
        return activity

    def figures(self) -> dict[int, dict[str, Bursts]]:
        """The profiles' figures by job."""
        with self._lock:
            profiles = dict(self._profiles)
        return {jobid: profile.figures() for jobid, profile in profiles.items()}

    def step(self) -> None:
        """Take one sample; the time and energy since the previous one count as the GPU is now."""
        samples = self._sample()
        sent, received = self._traffic() if self._profiles else (0, 0)
        now = self._now()
        with self._lock:
            for gpu, (utilisation, energy, _) in samples.items():
                self._count(gpu, utilisation, energy, now)
            if self._profiles:
                self._profile(samples, now, sent, received)

    def _count(self, gpu: str, utilisation: float | None, energy: int | None, now: float) -> None:
        before, last_energy = self._last.get(gpu, (now, energy))
        self._last[gpu] = (now, energy)
        seconds = now - before
        if utilisation is None or seconds <= 0:
            return
        activity = self._activity.setdefault(gpu, GpuActivity())
        activity.seconds += seconds
        activity.utilised_seconds += utilisation * seconds
        if utilisation < IDLE_BELOW:
            activity.idle_seconds += seconds
            if energy is not None and last_energy is not None:
                activity.idle_mj += max(0, energy - last_energy)

    def _profile(
        self, samples: Mapping[str, GpuSample], now: float, sent: int, received: int
    ) -> None:
        last, self._bytes = self._bytes, (now, sent, received)
        seconds = now - last[0] if last else 0.0
        send = max(0, sent - last[1]) / seconds if last and seconds > 0 else 0.0
        receive = max(0, received - last[2]) / seconds if last and seconds > 0 else 0.0
        for profile in self._profiles.values():
            own_samples = [samples[gpu] for gpu in profile.gpus if gpu in samples]
            profile.samples["gpu"].append(sum(sample[0] or 0.0 for sample in own_samples))
            profile.samples["gpu_memory"].append(
                float(sum(sample[2] or 0 for sample in own_samples))
            )
            profile.samples["send"].append(send)
            profile.samples["receive"].append(receive)

    def period_seconds(self) -> float:
        return 1 / PROFILE_HZ if self._profiles else 1.0
