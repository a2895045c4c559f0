"""The state files of virtual cards: one for the library, one for the daemon's own restarts.

Each file has two copies of its content and a generation number whose lowest bit selects the valid
copy. The writer fills the other copy and then increases the number, so readers never see a partial
update, and a writer that is killed leaves the valid copy unchanged.
"""

import ctypes
import mmap
import os
from ctypes import c_char, c_int32, c_uint32, c_uint64
from pathlib import Path
from typing import Generic, TypeVar

MAX_GPUS = 16
MAX_PROCESSES = 32
MAX_FAULTS = 16
LAYOUT = 1


class ProcessState(ctypes.Structure):
    """A process on a card."""

    _fields_ = (("pid", c_uint32), ("sm_percent", c_uint32), ("memory_bytes", c_uint64))


class FaultState(ctypes.Structure):
    """An NVML call (or `*`) that fails with the given error."""

    _fields_ = (("call", c_char * 56), ("code", c_int32), ("unused", c_uint32))


class GpuState(ctypes.Structure):
    """A card as the library shows it; the layout of gpu_t in cards.h."""

    _fields_ = (
        ("name", c_char * 96),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("bus_id", c_char * 32),
        ("minor", c_uint32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("memory_total_bytes", c_uint64),
        ("memory_reserved_bytes", c_uint64),
        ("memory_used_bytes", c_uint64),
        ("temperature_c", c_uint32),
        ("power_mw", c_uint32),
        ("limit_mw", c_uint32),
        ("limit_min_mw", c_uint32),
        ("limit_max_mw", c_uint32),
        ("pstate", c_uint32),
        ("util_gpu_percent", c_uint32),
        ("util_memory_percent", c_uint32),
        ("clock_mhz", c_uint32 * 4),
        ("clock_max_mhz", c_uint32 * 4),
        ("throttle_reasons", c_uint64),
        ("energy_mj", c_uint64),
        ("ecc_corrected", c_uint64),
        ("ecc_uncorrected", c_uint64),
        ("has_ecc", c_uint32),
        ("has_mig", c_uint32),
        ("nvlinks", c_uint32),
        ("unused", c_uint32),
        ("pcie_tx_kb_per_second", c_uint32),
        ("pcie_rx_kb_per_second", c_uint32),
        ("nvlink_tx_kib", c_uint64),
        ("nvlink_rx_kib", c_uint64),
        ("xid_count", c_uint64),
        ("xid_last", c_uint64),
        ("updated_us", c_uint64),
        ("process_count", c_uint32),
        ("fault_count", c_uint32),
        ("processes", ProcessState * MAX_PROCESSES),
        ("faults", FaultState * MAX_FAULTS),
    )


class MeterState(ctypes.Structure):
    """What the daemon stores about a card for its next start."""

    _fields_ = (
        ("energy_mj", c_uint64),
        ("energy_rest_pj", c_uint64),
        ("span", c_uint64),
        ("span_jobid", c_uint64),
        ("span_since_ns", c_uint64),
        ("span_start_mj", c_uint64),
        ("span_start_rest_pj", c_uint64),
        ("power_mw", c_uint64),
        ("at_ns", c_uint64),
    )


class _Header(ctypes.Structure):
    _fields_ = (
        ("magic", c_char * 8),
        ("layout", c_uint32),
        ("count", c_uint32),
        ("generation", c_uint64),
        ("unused", c_uint64 * 5),
    )


Item = TypeVar("Item", bound=ctypes.Structure)


class StateFile(Generic[Item]):
    """A mapped file of up to MAX_GPUS items of one type, published all at once."""

    def __init__(self, path: Path, kind: type[Item], count: int, magic: bytes, mode: int) -> None:
        self.count = count
        self._kind = kind
        self._copy_size = ctypes.sizeof(kind) * MAX_GPUS
        size = ctypes.sizeof(_Header) + 2 * self._copy_size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)  # independent of the umask
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._header = _Header.from_buffer(self._map)
        self.is_new = self._header.magic != magic or self._header.layout != LAYOUT
        if self.is_new:
            self._header.generation = 0
            self._header.layout = LAYOUT
            self._header.magic = magic
        self._header.count = count

    def read(self) -> list[Item]:
        """Copies of the valid items."""
        start = self._offset(self._header.generation)
        raw = self._map[start : start + self._copy_size]
        size = ctypes.sizeof(self._kind)
        return [self._kind.from_buffer_copy(raw, i * size) for i in range(self.count)]

    def publish(self, items: list[Item]) -> None:
        """Replace the valid items by `items`."""
        start = self._offset(self._header.generation + 1)
        raw = b"".join(bytes(item) for item in items)
        self._map[start : start + len(raw)] = raw
        self._header.generation += 1

    def close(self) -> None:
        """Unmap; the content stays."""
        del self._header
        self._map.close()

    def _offset(self, generation: int) -> int:
        return ctypes.sizeof(_Header) + (generation & 1) * self._copy_size


def gpu_file(folder: Path, node: str, count: int) -> StateFile[GpuState]:
    """The file that the library maps; all users can read it, as all may use NVML."""
    return StateFile(folder / f"{node}.state", GpuState, count, b"CARMEGPU", 0o644)


def meter_file(folder: Path, node: str, count: int) -> StateFile[MeterState]:
    """The daemon's state; other users may not see which job holds a card."""
    return StateFile(folder / f"{node}.meter", MeterState, count, b"CARMEMTR", 0o600)
