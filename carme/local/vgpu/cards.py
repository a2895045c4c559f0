"""The cards that virtual GPUs imitate, and which node has which of them."""

import tomllib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from carme.config import LocalNode

_UUID_SPACE = uuid.UUID("c0ffee00-6a70-4d65-8000-000000000000")
_IDLE_CLOCK = 0.15


@dataclass(frozen=True)
class CardModel:
    """A GPU model; its values are in models.toml."""

    name: str
    memory_bytes: int
    idle_mw: int
    limit_mw: int
    min_limit_mw: int
    shape: float
    clock_mhz: tuple[int, int, int, int]
    """Graphics, SM, memory, video: NVML's order."""
    compute_capability: tuple[int, int]
    pci_device_id: int
    ecc: bool
    mig: bool
    nvlinks: int
    pcie_kb_per_second: int

    def power_mw(self, utilisation: float) -> int:
        """Power at `utilisation` (0 to 1)."""
        rise: float = utilisation**self.shape
        return self.idle_mw + round((self.limit_mw - self.idle_mw) * rise)

    def clocks_mhz(self, utilisation: float) -> list[int]:
        """Clocks, which rise with `utilisation`; the lowest for an idle card."""
        return [round(top * max(_IDLE_CLOCK, min(1.0, 0.6 + utilisation))) if utilisation
                else round(top * _IDLE_CLOCK) for top in self.clock_mhz]  # fmt: skip

    def temperature_c(self, power_mw: int) -> float:
        """The temperature after some time at constant power."""
        return 30 + 45 * power_mw / self.limit_mw


@dataclass(frozen=True)
class Card:
    """One virtual GPU of a node."""

    node: str
    index: int
    """Its position on the node, which is also Slurm's index."""
    minor: int
    """N of /dev/nvidiaN: unique on the machine, because all its nodes share one /dev."""
    model: CardModel

    @property
    def uuid(self) -> str:
        return f"GPU-{uuid.uuid5(_UUID_SPACE, f'{self.node}/{self.index}')}"

    @property
    def serial(self) -> str:
        return f"VIRTUAL{self.minor:06}"

    @property
    def bus_id(self) -> str:
        return f"00000000:{self.minor + 1:02X}:00.0"


def model_of(gres_type: str) -> CardModel:
    """The model for Slurm's GPU type; an unknown type gets the general one."""
    return _models().get(gres_type) or _models()["virtual"]


def cards(nodes: Iterable[LocalNode]) -> dict[str, tuple[Card, ...]]:
    """Every node's cards, by node name; minors are unique across nodes."""
    cards_of: dict[str, tuple[Card, ...]] = {}
    minor = 0
    for node in nodes:
        count = node.gpus.count if node.gpus else 0
        model = model_of(node.gpus.type) if node.gpus else model_of("")
        cards_of[node.name] = tuple(
            Card(node.name, index, minor + index, model) for index in range(count)
        )
        minor += count
    return cards_of


@cache
def _models() -> dict[str, CardModel]:
    table = tomllib.loads(files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))
    return {
        name: CardModel(
            name=row["name"],
            memory_bytes=row["memory_gib"] * 2**30,
            idle_mw=row["idle_watts"] * 1000,
            limit_mw=row["limit_watts"] * 1000,
            min_limit_mw=row["min_limit_watts"] * 1000,
            shape=row["shape"],
            clock_mhz=(
                row["clock_mhz"]["graphics"],
                row["clock_mhz"]["graphics"],
                row["clock_mhz"]["memory"],
                row["clock_mhz"]["video"],
            ),
            compute_capability=(row["compute_capability"][0], row["compute_capability"][1]),
            pci_device_id=row["pci_device_id"],
            ecc=row["ecc"],
            mig=row["mig"],
            nvlinks=row["nvlinks"],
            pcie_kb_per_second=row["pcie_mb_per_second"] * 1000,
        )
        for name, row in table.items()
    }
