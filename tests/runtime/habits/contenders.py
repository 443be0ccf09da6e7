"""The contenders: plain torch on the unsplit model, the reference, and the pipeline.

Each trains the modules of a case, made anew with the same weights, and reports what it saw. Plain
torch shares with Weft only the definition of what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from tests.runtime.habits.between import changed
from tests.runtime.habits.case import GRAPHS, Case
from tests.runtime.habits.forms import Record
from tests.runtime.habits.where import here
from weft import runtime
from weft.ir.graph import Graph
from weft.runtime import Pipeline, Reference
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.seeds import Drawn

SEED = 3

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
NamedParameters: TypeAlias = Iterable[tuple[str, nn.Parameter]]
Make: TypeAlias = Callable[[NamedParameters], Optimizer]


@dataclass
class Trace:
    """What a contender saw: numbers (None: there is none), what hooks saw, and modes."""

    numbers: dict[str, Array | None] = field(default_factory=dict)
    seen: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    modes: dict[str, bool] = field(default_factory=dict)
    updates: int = 0

    def note(self, name: str, value: Tensor | None) -> None:
        self.numbers[name] = None if value is None else value.detach().clone().cpu().numpy()

    def look(self, module: nn.Module, prefix: str, suffix: str = "") -> None:
        """At the weights, gradients, buffers and modes of a module."""
        for name, weight in module.named_parameters(prefix, remove_duplicate=False):
            self.note(f"{name}{suffix}", weight)
            self.note(f"gradient of {name}{suffix}", weight.grad)
        for name, buffer in module.named_buffers(prefix, remove_duplicate=False):
            self.note(f"{name}{suffix}", buffer)
        for name, child in module.named_modules(prefix=prefix, remove_duplicate=False):
            self.modes[f"{name}{suffix}"] = child.training

    def listen(self, module: nn.Module, prefix: str) -> None:
        """Take what the hooks within saw."""
        for name, child in module.named_modules(prefix=prefix):
            if hasattr(child, "seen"):
                self.seen[name] = list(child.seen)


# the stages


class Chain(nn.Module):
    """Layers that make a stage of a list: its arguments go to the first."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *given: Any) -> Any:
        first, *others = self.layers
        value = first(*given)
        for layer in others:
            value = layer(value)
        return value


class Layers(nn.Sequential):
    """A Sequential whose values are contiguous where it is cut: what they draw depends on that."""

    ends: frozenset[int] = frozenset()

    def forward(self, value: Any) -> Any:
        for index, layer in enumerate(self):
            value = layer(contiguous(value) if index in self.ends else value)
        return value


class Stages(nn.Sequential):
    """Stages of a list, called one after the other: a tuple is spread over the arguments."""

    graph: Graph | None = None

    def forward(self, batch: Any) -> Any:
        values: list[Any] = []
        for index, stage in enumerate(self):
            before = self.graph.predecessors[index] if self.graph else range(index)[-1:]
            given = [contiguous(values[other]) for other in before] or [batch]
            spread = [value if type(value) is tuple else (value,) for value in given]
            values.append(stage(*chain.from_iterable(spread)))
        return values[-1]


def contiguous(value: Any) -> Any:
    """A value with the layout in which it would travel."""
    if isinstance(value, Tensor):
        return value.contiguous()
    if isinstance(value, Record):
        return replace(value, value=value.value.contiguous())
    return pytree.tree_map_only(Tensor, Tensor.contiguous, value)


def whole_of(case: Case) -> nn.Module:
    """The unsplit model."""
    if case.model.is_split:
        layers = Layers(*case.modules())
        layers.ends = frozenset(case.model.starts[1:])
        return layers
    stages = Stages(*_listed(case))
    stages.graph = GRAPHS[case.plan.graph] if case.plan.graph else None
    return stages


def stages_of(case: Case) -> list[nn.Module]:
    """The stages as Weft is given them; where they are cut evenly, it is left to find that out."""
    if not case.model.is_split:
        return _listed(case)
    layers, sizes = nn.Sequential(*case.modules()), case.model.sizes
    if case.model.is_traced:
        cuts = [str(start) for start in case.model.starts[1:]]
        made = runtime.split(layers, example=case.batch(0)[0], cuts=cuts)
        for module in layers.modules():
            vars(module).get("seen", []).clear()  # copies have run, to be compared
        return made
    is_even = sorted(sizes, reverse=True) == [*sizes] and sizes[0] - sizes[-1] <= 1
    return runtime.split(layers, stages=len(sizes), layers=None if is_even else sizes)


def _listed(case: Case) -> list[nn.Module]:
    layers, sizes = case.modules(), case.model.sizes
    parts = [
        layers[start : start + size] for start, size in zip(case.model.starts, sizes, strict=True)
    ]
    return [part[0] if len(part) == 1 else Chain(part) for part in parts]


def prefix_of(case: Case, stage: int) -> str:
    """Of the names that a stage's modules have in the unsplit model."""
    return "" if case.model.is_split else str(stage)


# layers, by their number


def _within(module: nn.Module, path: str) -> nn.Module:
    return module.get_submodule(path)


def _layer_in(case: Case, stages: Sequence[nn.Module], layer: int) -> nn.Module:
    stage = case.model.stage_of(layer)
    return _within_stage(case, stages[stage], layer)


def _layers_in(case: Case, run: Pipeline, layer: int) -> list[nn.Module]:
    """Its copies that this process has."""
    wanted = case.model.stage_of(layer)
    return [
        _within_stage(case, module, layer)
        for (_, stage), module in run.modules.items()
        if stage == wanted
    ]


def _within_stage(case: Case, module: nn.Module, layer: int) -> nn.Module:
    path = case.paths[layer]
    return module.get_submodule(path if case.model.is_split else path.partition(".")[2])


# settings


def optimizer_of(case: Case) -> Make | None:
    return OPTIMIZERS[case.training.optimizer]


def _momentum(named: NamedParameters) -> Optimizer:
    weights = [weight for _, weight in named] or [nn.Parameter(torch.zeros(1))]
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.1)


def _adamw(named: NamedParameters) -> Optimizer:
    """A large epsilon: gradients that are zero but for rounding must not become steps."""
    weights = [weight for _, weight in named] or [nn.Parameter(torch.zeros(1))]
    return torch.optim.AdamW(weights, lr=0.05, eps=1e-2, weight_decay=0.1)


OPTIMIZERS: Mapping[str, Make | None] = {
    "none": None,
    "momentum": _momentum,
    "adamw": _adamw,
}


def casting(case: Case) -> Any:
    return torch.autocast(here(), torch.bfloat16) if case.training.is_cast else nullcontext()


# plain torch


def plain(case: Case) -> Trace:
    """The unsplit model: forward and backward of each microbatch, then the update."""
    whole = whole_of(case)
    if case.model.is_traced:
        _run_uncut(case)
    trace, draw = Trace(), Draw(SEED)
    KeyedModules([("", whole)], draw)
    make = optimizer_of(case)
    optimizer = make(whole.named_parameters()) if make else None
    for number, action in enumerate(case.training.steps):
        changed(case.training.changes, number, lambda layer: [_within(whole, case.paths[layer])])
        with casting(case):
            if action == "evaluate":
                losses = _evaluated(case, whole, draw, number)
            else:
                losses = _trained(case, whole, draw, number)
                draw.step += 1
        trace.note(f"loss of step {number}", torch.stack(losses).sum())
        if action == "update":
            _update(case, whole, optimizer, trace, number)
    trace.look(whole, "")
    trace.listen(whole, "")
    return trace


def _run_uncut(case: Case) -> None:
    """As a trace does: nothing is made contiguous, and what cannot run so fails here, too."""
    batch, _ = case.batch(0)
    with torch.random.fork_rng(devices=[]), casting(case):
        nn.Sequential(*case.modules())(_pieces(batch, case.microbatches, case.rows)[0])


def _trained(case: Case, whole: nn.Module, draw: Draw, number: int) -> list[Tensor]:
    losses = []
    for drawn, loss in _losses(case, whole, draw, number):
        with draw.backward(drawn), torch.autocast(here(), enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().reshape(()))
    return losses


def _evaluated(case: Case, whole: nn.Module, draw: Draw, number: int) -> list[Tensor]:
    modes = {module: module.training for module in whole.modules()}
    whole.eval()
    with torch.no_grad():
        losses = [loss.reshape(()) for _, loss in _losses(case, whole, draw, number)]
    for module, is_training in modes.items():
        module.training = is_training
    return losses


def _losses(
    case: Case, whole: nn.Module, draw: Draw, number: int
) -> Iterator[tuple[Drawn, Tensor]]:
    """What each microbatch drew, and its weighted loss; one's graph is gone before the next."""
    count, loss = case.microbatches, case.loss()
    batch, target = case.batch(number)
    inputs, targets = _pieces(batch, count, case.rows), _pieces(target, count, case.rows)
    shares = case.weights or [1 / count] * count
    for microbatch in range(count):
        wanted = targets[microbatch]
        with draw.forward(microbatch, device=torch.empty(0).device) as drawn:
            output = whole(inputs[microbatch])
            draw.enter_loss()
            found = loss(output, *(wanted if isinstance(wanted, tuple) else (wanted,)))
        yield drawn, found * shares[microbatch]


def _pieces(data: Any, count: int, rows: int) -> list[Any]:
    """The microbatches of a batch, the last of which may be shorter."""
    size = -(-rows // count)

    def piece(start: int) -> Any:
        return pytree.tree_map_only(Tensor, lambda value: value[start : start + size], data)

    return [piece(start) for start in range(0, rows, size)]


def _update(
    case: Case, whole: nn.Module, optimizer: Optimizer | None, trace: Trace, number: int
) -> None:
    if case.training.clip is not None:
        norm = nn.utils.clip_grad_norm_(whole.parameters(), case.training.clip)
        trace.note(f"norm of step {number}", norm)
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


# Weft


def reference(case: Case) -> Trace:
    """The same program by the reference."""
    stages = stages_of(case)
    trace, run = Trace(), _reference(case, stages)
    for number, action in enumerate(case.training.steps):
        changed(case.training.changes, number, lambda layer: [_layer_in(case, stages, layer)])
        if action != "evaluate":
            with casting(case):
                batch, target = case.batch(number)
                is_updated = action == "update"
                loss = run.step(batch, target, weights=case.weights, update=is_updated)
            trace.note(f"loss of step {number}", loss)
    for index, stage in enumerate(stages):
        trace.look(stage, prefix_of(case, index))
    return trace


def _reference(case: Case, stages: Sequence[nn.Module]) -> Reference:
    return Reference(
        stages,
        case.plan.program,
        loss=case.loss(),
        optimizer=optimizer_of(case),
        clip=case.training.clip,
        groups=[[stage] for stage in range(len(stages))] if case.is_asynchronous else None,
        seed=SEED,
        precision=case.training.precision,  # type: ignore[arg-type]
        compress=case.training.compress,  # type: ignore[arg-type]
    )


def pipeline(case: Case, trace: Trace, transport: Any = "auto") -> Trace:
    """The program itself; the trace is filled as far as it gets."""
    stages = stages_of(case)
    more: dict[str, Any] = {"clip_by": "stage"} if case.is_asynchronous else {}
    run = Pipeline(
        stages,
        case.plan.program,
        loss=case.loss(),
        optimizer=_counting(optimizer_of(case), trace),
        clip=case.training.clip,
        seed=SEED,
        transport=transport,
        offload=case.training.offload,  # type: ignore[arg-type]
        precision=case.training.precision,  # type: ignore[arg-type]
        compress=case.training.compress,  # type: ignore[arg-type]
        **more,
    )
    for number, action in enumerate(case.training.steps):
        changed(case.training.changes, number, lambda layer: _layers_in(case, run, layer))
        batch, target = case.batch(number)
        with casting(case):
            if action == "evaluate":
                result = run.evaluate(batch, target, weights=case.weights)
            else:
                is_updated = action == "update"
                result = run.step(batch, target, weights=case.weights, update=is_updated)
        trace.note(f"loss of step {number}", result.loss)
        if result.norm is not None:
            trace.note(f"norm of step {number}", result.norm)
    if case.is_asynchronous:
        run.drain()
    for (pipe, index), module in run.modules.items():
        trace.look(module, prefix_of(case, index), f" of pipe {pipe}" if pipe else "")
        trace.listen(module, prefix_of(case, index))
    return trace


def _counting(make: Make | None, trace: Trace) -> Make | None:
    """An optimizer that notes when it changes a weight."""
    if make is None:
        return None

    def count(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        trace.updates += any(weight.grad is not None for weight in weights)

    def made(named: NamedParameters) -> Optimizer:
        optimizer = make(named)
        optimizer.register_step_post_hook(count)
        return optimizer

    return made


def without_pipe(name: str) -> str:
    """The name that a copy's weight has in the unsplit model."""
    return name.partition(" of pipe ")[0]
