"""Tensor parallelism of a training run: which ranks share the layers of a device.

a plan with tensor 2 on 2 devices     ranks 0 1     device 0
                                            2 3     device 1
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from weft.errors import InputError
from weft.runtime.planned import TENSOR
from weft.runtime.ranks.members import PIPELINE
from weft.train.settings import Settings


def mesh_of(settings: Settings) -> DeviceMesh | None:
    """The devices of the program, and the ranks of each; None where a device is one rank.

    Every rank calls this.
    """
    if settings.tensor == 1:
        return None
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks != settings.ranks:
        raise InputError(
            f"the plan is for {settings.ranks} ranks ({settings.program.devices} devices x"
            f" {settings.tensor} that share every layer), and there are {ranks}"
        )
    kind = "cuda" if settings.on_this_machine().accelerator == "cuda" else "cpu"
    sizes = settings.program.devices, settings.tensor
    return init_device_mesh(kind, sizes, mesh_dim_names=(PIPELINE, TENSOR))
