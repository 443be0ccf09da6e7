"""The machine at hand, as far as its speed depends on it."""

from __future__ import annotations

import os
import platform

import torch


def machine(device: torch.device) -> dict[str, str]:
    """What a measured second holds for, by name."""
    found = {
        "system": platform.system(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    return found
