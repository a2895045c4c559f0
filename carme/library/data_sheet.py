"""A GPU that the library does not have, from the figures of its data sheet."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from carme.errors import InputError
from carme.simulator.hardware import Gpu
from carme.validation import explain

STEP_FACTOR = 2
"""A step takes between half and twice the prediction: 9 of 10 of 1,767 published runs on GPUs whose
efficiency is assumed (`carme validate --suite published`)."""
UNITS = 108
"""Multiprocessors where the data sheet does not tell; they matter for small products only."""


def data_sheet_gpu(
    name: str, flops: tuple[str, ...], memory_bytes: float | None, bandwidth: float | None
) -> Gpu:
    """The GPU. `flops` are of the form bf16=1e15, dense. Raises InputError for what is missing."""
    if memory_bytes is None or bandwidth is None:
        raise InputError(
            f"the data sheet of {name} is not complete", "give --gpu-memory and --gpu-bandwidth"
        )
    peaks: dict[str, Any] = {}
    for text in flops:
        match = re.fullmatch(r"([a-z0-9]+)=([0-9.]+(?:e[+]?[0-9]+)?)", text.lower())
        if not match:
            raise InputError(f"--gpu-flops {text!r}", "write TYPE=FLOPS, such as bf16=989e12")
        peaks[match[1]] = float(match[2])
    # Hosts of large accelerators have switches between them, those of boards do not.
    node = "dgx-h100" if memory_bytes > 60e9 else "pcie-5-server"
    data = {
        "name": name,
        "title": f"{name} (data sheet)",
        "units": UNITS,
        "peak_flops": peaks,
        "memory_bytes": memory_bytes,
        "memory_bandwidth": bandwidth,
        "default_node": node,
        "power": {"idle_watts": 50, "limit_watts": 500, "busy_watts": 450},
        "sources": {
            "peak_flops": "given on the command line",
            "power": "assumed: nothing is known of it",
        },
    }
    try:
        return Gpu.model_validate(data)
    except ValidationError as error:
        raise InputError("; ".join(explain(error))) from None
