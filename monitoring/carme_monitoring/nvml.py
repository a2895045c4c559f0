"""GPUs through NVML (nvidia-ml-py)."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from carme.errors import MissingError, UnavailableError
from carme_monitoring.gpus import (
    CLOCKS,
    THROTTLE_REASONS,
    GpuEnergy,
    GpuProcess,
    GpuReading,
    MigSlice,
)
from carme_monitoring.metrics import LabelledCounter

try:
    import pynvml
except ImportError:  # `_begin` raises an error that names the package
    pynvml = None

_ALL_LINKS = 0xFFFFFFFF
_BLANK_MEMORY = 2**63
_MIG_SLICES = 7
_NO_MIG = (3, 13)
"""NVML's "not supported" and "no such function": most GPUs cannot be sliced, not an error."""
_NO_SLICE = (2, 4, 6)
"""NVML's "invalid argument", "no permission" and "not found"."""
_MAX = {"power": 3_000_000, "temperature": 200, "percent": 100, "pcie": 10**9}


class NvmlGpus:
    """The node's GPUs. Values that a GPU does not report are left out and counted."""

    def __init__(self, errors: LabelledCounter) -> None:
        self._errors = errors
        self._handles: list[tuple[Any, GpuReading]] = []
        """Handles, and what does not change of each GPU, read once."""
        self._ready = False
        self._starting = threading.Lock()
        self._sliced: dict[str, tuple[bool, tuple[MigSlice, ...]]] = {}
        self.xids: dict[tuple[str, int], int] = {}
        self._watches_xids = False
        self._xid_thread: threading.Thread | None = None

    def read(self) -> list[GpuReading]:
        """Every GPU with all its values."""
        self._start()
        return [self._read(handle, gpu) for handle, gpu in self._handles]

    def energy_counters(self) -> list[GpuEnergy]:
        """The energy counters: quick, because a job's start and end wait for it."""
        self._start()
        counters = []
        for handle, gpu in self._handles:
            value = self._ask("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            if value is not None:
                counters.append(GpuEnergy(gpu.index, gpu.uuid, int(value)))
        return counters

    def sample(self) -> dict[str, tuple[float | None, int | None, int | None]]:
        """Utilisation (0 to 1), energy (mJ) and memory in use, for the sampler."""
        self._start()
        samples = {}
        for handle, gpu in self._handles:
            rates = self._ask("utilisation", pynvml.nvmlDeviceGetUtilizationRates, handle)
            energy = self._ask("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            memory = self._ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
            used = _ratio(rates.gpu) if rates else None
            samples[gpu.uuid] = (used, energy, memory.used if memory else None)
        return samples

    def watch_xids(self) -> None:
        """Count driver errors from now on, in a thread of its own that only waits."""
        self._watches_xids = True
        self._start()

    def _start(self) -> None:
        """Start NVML once: sampler, collection and a read that timed out may call this together."""
        if self._ready:
            return
        with self._starting:
            if not self._ready:
                self._begin()

    def _begin(self) -> None:
        if pynvml is None:
            raise MissingError("nvidia-ml-py is not installed", "pip install 'carme[monitoring]'")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                return  # a node without GPUs; one that has them has the library
            raise UnavailableError(f"NVML: {error}") from error
        driver = _text(self._ask("driver", pynvml.nvmlSystemGetDriverVersion))
        handles = []
        for index in range(self._ask("count", pynvml.nvmlDeviceGetCount) or 0):
            handle = self._ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _text(self._ask("uuid", pynvml.nvmlDeviceGetUUID, handle)) if handle else ""
            if not uuid:  # lost before its first reading: it has no known UUID
                continue
            pci = self._ask("pci", pynvml.nvmlDeviceGetPciInfo, handle)
            gpu = GpuReading(
                index=index,
                uuid=uuid,
                name=_text(self._ask("name", pynvml.nvmlDeviceGetName, handle)),
                minor=self._ask("minor", pynvml.nvmlDeviceGetMinorNumber, handle),
                bus_id=_text(pci.busId) if pci else "",
                driver=driver,
            )
            handles.append((handle, gpu))
        self._handles, self._ready = handles, True
        if self._watches_xids and not (self._xid_thread and self._xid_thread.is_alive()):
            self._xid_thread = threading.Thread(target=self._wait_xids, daemon=True, name="xid")
            self._xid_thread.start()

    def _read(self, handle: Any, card: GpuReading) -> GpuReading:
        ask = self._ask
        if self._is_lost(handle):
            self._errors.add(("gpu", "lost"))
            return replace(card, lost=True)
        rates = ask("utilisation", pynvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._memory(handle)
        power = ask("power", pynvml.nvmlDeviceGetPowerUsage, handle, maximum=_MAX["power"])
        limit = ask("limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle, maximum=_MAX["power"])
        send = ask("pcie", pynvml.nvmlDeviceGetPcieThroughput, handle, 0, maximum=_MAX["pcie"])
        receive = ask("pcie", pynvml.nvmlDeviceGetPcieThroughput, handle, 1, maximum=_MAX["pcie"])
        throttle_bits = ask("throttle", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        links = self._nvlink(handle)
        mig, slices = self._mig(handle, card.uuid)
        return replace(
            card,
            utilisation=_ratio(rates.gpu) if rates else None,
            memory_utilisation=_ratio(rates.memory) if rates else None,
            memory_total_bytes=memory[0],
            memory_used_bytes=memory[1],
            memory_reserved_bytes=memory[2],
            power_watts=None if power is None else power / 1000,
            power_limit_watts=None if limit is None else limit / 1000,
            temperature_celsius=ask(
                "temperature",
                pynvml.nvmlDeviceGetTemperature,
                handle,
                0,
                maximum=_MAX["temperature"],
            ),
            clocks_hertz={
                clock: mhz * 1_000_000
                for number, clock in enumerate(CLOCKS)
                if (
                    mhz := ask(
                        "clock", pynvml.nvmlDeviceGetClockInfo, handle, number, maximum=10**5
                    )
                )
                is not None
            },
            throttle=None
            if throttle_bits is None
            else frozenset(
                reason for bit, reason in THROTTLE_REASONS.items() if throttle_bits & bit
            ),
            ecc_corrected=ask("ecc", pynvml.nvmlDeviceGetTotalEccErrors, handle, 0, 1),
            ecc_uncorrected=ask("ecc", pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 1),
            pcie_send=None if send is None else send * 1000,
            pcie_receive=None if receive is None else receive * 1000,
            nvlink_send_bytes=links[0],
            nvlink_receive_bytes=links[1],
            mig=mig,
            slices=slices,
            processes=self._processes(handle),
        )

    def _ask(
        self, value: str, call: Callable[..., Any], *args: Any, maximum: int = 2**64 - 2
    ) -> Any:
        """NVML's answer; None, and a count, if it fails or is implausible."""
        try:
            answer = call(*args)
        except (pynvml.NVMLError, UnicodeDecodeError):
            self._errors.add(("gpu", value))
            return None
        if isinstance(answer, int) and not 0 <= answer <= maximum:
            self._errors.add(("gpu", value))
            return None
        return answer

    def _is_lost(self, handle: Any) -> bool:
        try:
            pynvml.nvmlDeviceGetIndex(handle)
        except pynvml.NVMLError as error:
            return bool(error.value == pynvml.NVML_ERROR_GPU_IS_LOST)
        return False

    def _memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        try:
            info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            return info.total, info.used, info.reserved
        except pynvml.NVMLError:  # a driver before 510: reserved memory counts as used
            info = self._ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
            return (info.total, info.used, None) if info else (None, None, None)

    def _nvlink(self, handle: Any) -> tuple[int | None, int | None]:
        fields = [
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        ]
        values = self._ask("nvlink", pynvml.nvmlDeviceGetFieldValues, handle, fields)
        if values is None or any(value.nvmlReturn for value in values):
            return None, None
        return values[0].value.ullVal * 1024, values[1].value.ullVal * 1024

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        running = self._ask("processes", pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        shares = {}
        try:
            for entry in pynvml.nvmlDeviceGetProcessUtilization(handle, 0):
                shares[entry.pid] = float(entry.smUtil)
        except pynvml.NVMLError:  # none ran, or the GPU cannot tell: shares stay unknown
            shares = {}
        return tuple(
            GpuProcess(
                entry.pid,
                entry.usedGpuMemory if (entry.usedGpuMemory or 0) < _BLANK_MEMORY else None,
                shares.get(entry.pid),
            )
            for entry in running
        )

    def _mig(self, handle: Any, uuid: str) -> tuple[bool, tuple[MigSlice, ...]]:
        """Whether the GPU is sliced, and how; the last answer while it gives none."""
        try:
            is_sliced = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
            self._sliced[uuid] = (is_sliced, self._slices(handle) if is_sliced else ())
        except pynvml.NVMLError as error:
            if error.value not in _NO_MIG:
                self._errors.add(("gpu", "mig"))
        return self._sliced.get(uuid, (False, ()))

    def _slices(self, handle: Any) -> tuple[MigSlice, ...]:
        slices = []
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except pynvml.NVMLError as error:
                if error.value in _NO_SLICE:  # there are fewer than there could be
                    continue
                raise
            memory = self._ask("mig", pynvml.nvmlDeviceGetMemoryInfo, part)
            attributes = self._ask("mig", pynvml.nvmlDeviceGetAttributes, part)
            slices.append(
                MigSlice(
                    _text(self._ask("mig", pynvml.nvmlDeviceGetUUID, part)) or f"MIG-{index}",
                    attributes.gpuInstanceSliceCount / _MIG_SLICES if attributes else 0.0,
                    memory.total if memory else None,
                    memory.used if memory else None,
                )
            )
        return tuple(slices)

    def _wait_xids(self) -> None:
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for handle, _ in self._handles:
            try:
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
            except pynvml.NVMLError:
                self._errors.add(("gpu", "xid"))
        while True:
            try:
                event = pynvml.nvmlEventSetWait(events, 2000)
                uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                return
            key = (uuid, int(event.eventData))
            self.xids[key] = self.xids.pop(key, 0) + 1  # the latest is the last


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value or "")


def _ratio(percent: int) -> float | None:
    return percent / 100 if 0 <= percent <= _MAX["percent"] else None
