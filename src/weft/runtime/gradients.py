"""Gradients between the last backward and the update: summed over pipes, clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.ir.program import Program
from weft.runtime.stage import Stage
from weft.runtime.world import Form, World


class Gradients:
    """The gradients of all stages, of which this process holds some.

    `counts` has the parameters of every stage, so that ranks agree on a place for each.
    """

    def __init__(
        self,
        program: Program,
        copies: Mapping[tuple[int, int], Stage],
        world: World,
        counts: Sequence[int],
    ) -> None:
        self._program, self._copies, self._world, self._counts = program, copies, world, counts

    def sum_pipes(self) -> None:
        """Each copy of a stage gets the sum over all of them, in the order of the pipes."""
        pipes = len(self._program.placement.pipes)
        if pipes == 1:
            return
        for index in range(self._program.stages):
            flat = {
                pipe: _flat(self._copies[pipe, index].module)
                for pipe in range(pipes)
                if (pipe, index) in self._copies
            }
            parts = self._exchanged(index, flat)
            for pipe in flat:
                total = parts[0]
                for other in parts[1:]:
                    total = total + other
                _unflatten(self._copies[pipe, index].module, total)

    def _exchanged(self, index: int, flat: dict[int, Tensor]) -> list[Tensor]:
        """The gradients of all copies of a stage, where this process has one of them."""
        placement = self._program.placement
        if not flat:
            return []
        mine = next(iter(flat.values()))
        form = Form(tuple(mine.shape), mine.dtype)
        away = {
            pipe: devices[index] for pipe, devices in enumerate(placement.pipes) if pipe not in flat
        }
        arrived = self._world.swap(
            dict.fromkeys(away.values(), mine),
            dict.fromkeys(away.values(), form),
        )
        known = flat | {pipe: arrived[device] for pipe, device in away.items()}
        return [known[pipe] for pipe in sorted(known)]

    def clip(self, most: float, dtype: torch.dtype) -> Tensor:
        """Scale all gradients to a global norm of at most so much; the norm before.

        As torch does: the norm of the norms of all parameters, in model order.
        """
        norms = torch.zeros(sum(self._counts), dtype=torch.float64)
        for (pipe, index), stage in self._copies.items():
            first = sum(self._counts[:index])
            for place, parameter in enumerate(stage.module.parameters()):
                if pipe == 0 and parameter.grad is not None:
                    norms[first + place] = torch.linalg.vector_norm(parameter.grad)
        everywhere = self._world.total(norms)
        norm: Tensor = torch.linalg.vector_norm(everywhere[everywhere != 0].to(dtype))
        share = torch.clamp(most / (norm + 1e-6), max=1.0)
        for stage in self._copies.values():
            for parameter in stage.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(share)
        return norm


def _flat(module: nn.Module) -> Tensor:
    """All gradients of a module as one tensor; zeros where there is none."""
    return torch.cat([_grad(parameter).flatten() for parameter in module.parameters()])


def _grad(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _unflatten(module: nn.Module, total: Tensor) -> None:
    sizes = [parameter.numel() for parameter in module.parameters()]
    for parameter, part in zip(module.parameters(), torch.split(total, sizes), strict=True):
        if parameter.requires_grad:
            parameter.grad = part.view_as(parameter).clone()
