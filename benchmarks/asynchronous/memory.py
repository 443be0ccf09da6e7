"""Bytes of weights, gradients, optimizer state and activations on each rank, against formulas.

    python benchmarks/asynchronous/memory.py [--json FILE]

Eight blocks on 4 ranks, 8 microbatches per update (1 for pipedream), with and without recompute.
Every rank counts memory where it is, each place once:

    weights      all that forwards have used as weights, and the modules' own
    activations  what autograd saves in the stages, and their inputs, from F to B; the most at once
    outputs      what stages have sent and keep as roots of their graphs; the most at once
    gradients    of the modules' own weights in front of any update; the most at once
    optimizer    the state of Adam after the last update
"""

from __future__ import annotations

import argparse
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from borrowed import Row, Watch, reported, run
from formulas import Place, saved, saved_recomputed, versions
from methods import Method
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

import weft
from weft.ir.program import Program
from weft.lower import recompute

RANKS, BLOCKS, WIDTH, TOKENS = 4, 8, 256, 256
MICROBATCHES, UPDATES = 8, 4
SCHEDULES = ("gpipe", "1f1b", "pipedream", "pipedream-2bw", "wpipe")
MEBI = 1 << 20


class Setting(NamedTuple):
    """What one row is about."""

    schedule: str
    recompute: str

    @property
    def ranks(self) -> int:
        return RANKS

    @property
    def refusal(self) -> str:
        return ""

    @property
    def microbatches(self) -> int:
        return 1 if self.schedule == "pipedream" else MICROBATCHES

    @property
    def program(self) -> Program:
        program = Method(self.schedule).program(RANKS, self.microbatches)
        return recompute(program) if self.recompute == "yes" else program


# in a rank


class Gauge:
    """Bytes that are held, now and at most; a place that is held twice counts once."""

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()
        self.now = self.most = 0

    def hold(self, value: Tensor, holder: object) -> None:
        """Count a tensor's bytes for as long as the holder lives."""
        place, size = value.data_ptr(), value.numel() * value.element_size()
        weakref.finalize(holder, self._drop, place, size)
        self._holders[place] += 1
        if self._holders[place] == 1:
            self.now += size
            self.most = max(self.most, self.now)

    def _drop(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self.now -= size


class Packed:
    """A tensor that autograd saves."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Counted(nn.Module):
    """Some blocks, which tell what they hold."""

    def __init__(self, blocks: Sequence[nn.Module], count: Count) -> None:
        super().__init__()
        self.blocks, self._count = nn.Sequential(*blocks), count

    def forward(self, value: Tensor) -> Tensor:
        if value.is_meta:  # only its form is asked for
            return self.blocks(value)
        used = {weight.data_ptr(): weight.nbytes for weight in self.parameters()}
        self._count.weights |= used
        self._count.activations.hold(value, value)

        def pack(kept: Tensor) -> Tensor | Packed:
            if kept.data_ptr() in used:
                return kept
            packed = Packed(kept)
            self._count.activations.hold(kept, packed)
            return packed

        with saved_tensors_hooks(pack, lambda packed: getattr(packed, "value", packed)):
            out: Tensor = self.blocks(value)
        self._count.outputs.hold(out, out)
        return out


class Count:
    """All that the stages of a process hold."""

    def __init__(self) -> None:
        self.weights: dict[int, int] = {}
        self.activations, self.outputs = Gauge(), Gauge()
        self.gradients, self._own = 0, list[nn.Parameter]()
        self._optimizers: Sequence[Optimizer] = ()

    def watch(self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer] = ()) -> None:
        """These are the modules and the optimizers of this process."""
        self._own = [weight for module in modules for weight in module.parameters()]
        self._optimizers = optimizers
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self._look())

    def _look(self) -> None:
        held = sum(weight.grad.nbytes for weight in self._own if weight.grad is not None)
        self.gradients = max(self.gradients, held)

    def found(self) -> dict[str, int]:
        self.weights |= {weight.data_ptr(): weight.nbytes for weight in self._own}
        states = [state for one in self._optimizers for state in one.state.values()]
        values = [value for state in states for value in state.values()]
        return {
            "weights": sum(self.weights.values()),
            "activations": self.activations.most,
            "outputs": self.outputs.most,
            "gradients": self.gradients,
            "optimizer": sum(value.nbytes for value in values if value.dim()),
        }


class Block(nn.Module):
    """y = x + W (gelu (V x))."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = value + self.narrow(nn.functional.gelu(self.wide(value)))
        return out


def job(setting: Setting, arguments: argparse.Namespace, tell: Watch) -> dict[str, Any]:
    """In a rank: what its stages have held by the end of a run, and what one process would."""
    torch.manual_seed(0)
    count, program = Count(), setting.program
    each = BLOCKS // program.stages
    stages = [Counted([Block() for _ in range(each)], count) for _ in range(program.stages)]
    pipeline = weft.Pipeline(
        stages,
        program,
        loss=nn.functional.mse_loss,
        optimizer=lambda named: torch.optim.Adam([weight for _, weight in named]),
    )
    count.watch([*pipeline.modules.values()], pipeline.optimizers)
    for _ in range(UPDATES * MICROBATCHES // setting.microbatches):
        batch = torch.randn(setting.microbatches * TOKENS, WIDTH)
        dist.broadcast(batch, 0)
        pipeline.step(batch, batch.clone())
    if setting.schedule in ("pipedream", "pipedream-2bw", "wpipe"):
        pipeline.drain()
    tell()
    return {"found": count.found(), "left": count.activations.now}


# the report


def whole() -> dict[str, int]:
    """Bytes of the model, of what one microbatch saves in all of it, and of a boundary."""
    count = Count()
    model = Counted([Block() for _ in range(BLOCKS)], count)
    count.watch([model])
    value = torch.randn(TOKENS, WIDTH)
    out = model(value)
    return {**count.found(), "boundary": out.nbytes}


def row(arguments: argparse.Namespace, setting: Setting, watch: Watch) -> Row:
    by_rank = run(job, setting, arguments, watch)
    found = [rank["found"] for rank in by_rank]
    unit = whole()
    boundary = unit["boundary"] / unit["activations"] * RANKS
    places = [Place(device, RANKS, MICROBATCHES) for device in range(RANKS)]
    expected = partial(saved_recomputed, boundary=boundary) if setting.recompute == "yes" else saved
    formula = {
        "weights": [versions(setting.schedule, place) for place in places],
        "activations": [expected(setting.schedule, place) for place in places],
    }
    measured = {kind: [rank[kind] * RANKS / unit[kind] for rank in found] for kind in formula}
    cells = [
        *(shown(one[kind]) for kind in formula for one in (measured, formula)),
        shown([rank["outputs"] * RANKS / unit["activations"] for rank in found]),
        " ".join(f"{sum(rank.values()) / MEBI:.1f}" for rank in found),
    ]
    left = [rank["left"] for rank in by_rank]  # once nothing is in flight
    facts = {"measured": measured, "formula": formula, "bytes": found, "unit": unit, "left": left}
    return Row(cells, facts)


def shown(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--schedules", nargs="+", default=[*SCHEDULES])
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="wpipe alone")
    parser.add_argument("--timeout", type=int, default=60, help="seconds of a row")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.schedules = ["wpipe"]
    return arguments


COLUMNS = (
    "weights, P/D",
    "formula",
    "activations, A/D",
    "formula",
    "outputs, A/D",
    "total, MiB",
)

if __name__ == "__main__":
    given = parsed()
    rows = [Setting(*one) for one in product(given.schedules, ("no", "yes"))]
    reported(given, COLUMNS, rows, partial(row, given), rounds=1)
