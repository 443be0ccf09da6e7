"""Randomness that does not depend on the schedule.

Whatever a forward draws is keyed by (seed, step, microbatch, qualified name of the innermost
module in the whole model), so that order, cut, recomputation and the number of devices change
nothing: not only nn.Dropout, but F.dropout, attention, torch.rand_like or a module's own generator.

    enter block    seed by (block, its first call)
      enter drop   seed by (drop, its first call)
      leave drop   seed by (block, its first call, after drop)
    leave block    seed by (model, after block)

The seed of torch's generator says where the forward is: torch.utils.checkpoint restores it before
it runs modules again, and they draw what they drew before. Inside a compiled graph no module is
entered: what it draws is keyed by the compiled module.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from weft.errors import InputError
from weft.runtime.stage.split import Slice

DRAWING = (  # of torch's own modules; of all others none draws
    nn.modules.dropout._DropoutNd,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
MASK = (1 << 63) - 1
WATCHED = 2  # steps in which a forward is watched for what cannot be keyed


class Call(NamedTuple):
    """A module's forward: under which name, and how often that name was called before."""

    name: str
    occurrence: int


ROOT = Call("", 0)  # the whole model's


class Segment(NamedTuple):
    """A stretch of a call, from its start or the end of another one to the next."""

    call: Call
    after: Call | None
    seed: int


@dataclass(slots=True)
class Drawn:
    """What one forward of a microbatch has entered; its backward may run parts of it again."""

    base: int
    segments: dict[int, Segment] = field(default_factory=dict)  # by seed
    calls: dict[tuple[int, int], Call] = field(default_factory=dict)  # by segment and module
    counts: dict[object, int] = field(default_factory=dict)

    def segment(self, call: Call, after: Call | None = None) -> Segment:
        """A stretch of a call, known by its seed from now on."""
        found = Segment(call, after, _mixed(self.base, _word(call, after)))
        self.segments[found.seed] = found
        return found

    def call(self, segment: Segment, module: Keyed) -> Call:
        """The call of a module from a segment: the same one when a checkpoint runs it again."""
        key = (segment.seed, id(module))
        if key not in self.calls:
            names = module.names_under(segment.call.name)
            name = names[self._count((segment.call, key[1])) % len(names)]
            self.calls[key] = Call(name, self._count(name))
        return self.calls[key]

    def _count(self, key: object) -> int:
        count = self.counts.get(key, 0)
        self.counts[key] = count + 1
        return count


class Draw:
    """What forwards are keyed by; one for each model, shared by its modules.

    `places` has the step and the microbatch of those that have numbers of their own.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.step = seed, 0
        self.places: dict[int, tuple[int, int]] = {}
        self.drawn: Drawn | None = None  # while a forward or backward runs
        self.generators: list[torch.Generator] = []
        self.stack: list[tuple[Segment, Call]] = []

    def place(self, microbatch: int) -> tuple[int, int]:
        """The step of a microbatch, and which of its microbatches it is."""
        return self.places.get(microbatch, (self.step, microbatch))

    def forward(
        self,
        microbatch: int,
        stage: int | None = None,
        device: torch.device | None = None,
        inside: Keyed | None = None,
    ) -> AbstractContextManager[Drawn]:
        """Key all that is drawn here; the global generators are left as they were.

        Whoever calls a module by hand is `inside` it from the start.
        """
        step, index = self.place(microbatch)
        drawn = Drawn(_base(self.seed, step, index))
        going = _Forward(self, drawn, _generators(device), inside)
        return _watching(going, stage) if step < WATCHED else going

    def enter_loss(self) -> None:
        """Key what the loss draws, at the end of a forward."""
        assert self.drawn is not None
        self.seed_all(self.drawn.segment(Call("loss", 0)))

    def backward(self, drawn: Drawn | None) -> _Backward:
        """Let checkpoints inside a backward run modules again as they ran in that forward."""
        return _Backward(self, drawn)

    def seed_all(self, segment: Segment) -> None:
        for generator in self.generators or _generators(None):
            generator.manual_seed(segment.seed)


class _Forward:
    """A forward under way."""

    __slots__ = ("_before", "_draw", "_drawn", "_generators", "_inside", "_states")

    def __init__(
        self,
        draw: Draw,
        drawn: Drawn,
        generators: list[torch.Generator],
        inside: Keyed | None,
    ) -> None:
        self._draw, self._drawn, self._generators = draw, drawn, generators
        self._inside = inside

    def __enter__(self) -> Drawn:
        draw = self._draw
        self._before = draw.drawn, draw.generators, draw.stack
        draw.drawn, draw.generators, draw.stack = self._drawn, self._generators, []
        self._states = [generator.get_state() for generator in self._generators]
        if self._inside is None:
            draw.seed_all(self._drawn.segment(ROOT))
        else:
            self._inside.begin(self._drawn)
        return self._drawn

    def __exit__(self, *_: object) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        self._draw.drawn, self._draw.generators, self._draw.stack = self._before


class _Backward:
    """A backward under way."""

    __slots__ = ("_before", "_draw", "_drawn")

    def __init__(self, draw: Draw, drawn: Drawn | None) -> None:
        self._draw, self._drawn = draw, drawn

    def __enter__(self) -> None:
        self._before, self._draw.drawn = self._draw.drawn, self._drawn

    def __exit__(self, *_: object) -> None:
        self._draw.drawn = self._before


class Keyed:
    """A module that may draw: entered and left with its key."""

    def __init__(self, module: nn.Module, draw: Draw, names: list[str]) -> None:
        self._module, self._draw, self.names = module, draw, names
        self._callers: dict[str, list[str]] = {}
        self._own: list[tuple[str, torch.Generator]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Keyed:
        return self  # of no use to a copy of the module, which is keyed for itself

    def names_under(self, name: str) -> list[str]:
        """Under which names another module may call this one."""
        return self._callers.get(name, self.names)

    def look(self, known: set[str]) -> None:
        """See who may call the module, of all that are known, and which generators it has."""
        self._callers = {}
        for name in self.names:
            self._callers.setdefault(_caller(name, known), []).append(name)
        values = vars(self._module).items()
        self._own = [(name, value) for name, value in values if isinstance(value, torch.Generator)]

    def attach(self) -> None:
        """Enter and leave around every call of the module."""
        module = self._module
        compiled = module._compiled_call_impl
        if compiled is not None:
            module._compiled_call_impl = self._around(compiled)
            return
        module.register_forward_pre_hook(self._before, prepend=True)
        module.register_forward_hook(self._after, always_call=True)

    def enter(self) -> None:
        draw = self._draw
        drawn = draw.drawn
        assert drawn is not None
        segment = drawn.segments.get(torch.default_generator.initial_seed())
        if segment is None:  # somebody else has seeded the generator
            segment = draw.stack[-1][0] if draw.stack else drawn.segment(ROOT)
        call = drawn.call(segment, self)
        draw.stack.append((segment, call))
        self._seed(drawn.segment(call))

    def begin(self, drawn: Drawn) -> None:
        """Enter as the first; nobody has to leave."""
        name = self.names[0]
        drawn.counts[name] = 1
        self._seed(drawn.segment(Call(name, 0)))

    def _seed(self, segment: Segment) -> None:
        self._draw.seed_all(segment)
        for name, generator in self._own:
            generator.manual_seed(_mixed(segment.seed, _digest(name)))

    def leave(self) -> None:
        draw = self._draw
        assert draw.drawn is not None
        segment, call = draw.stack.pop()
        draw.seed_all(draw.drawn.segment(segment.call, call))

    def _before(self, _module: nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling() and self._draw.drawn is not None:
            self.enter()

    def _after(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if not torch.compiler.is_compiling() and self._draw.drawn is not None and self._draw.stack:
            self.leave()

    def _around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._draw.drawn is None:
                return compiled(*args, **kwargs)
            self.enter()
            try:
                return compiled(*args, **kwargs)
            finally:
                self.leave()

        return call


class Drawing:
    """The modules of some stages that may draw; each stage is called by its prefix.

    Hooks enter and leave them, which takes longer than a small module; all but one, if it is
    entered by hand.
    """

    def __init__(
        self,
        stages: Sequence[tuple[str, nn.Module]],
        draw: Draw,
        *,
        entered_by_hand: nn.Module | None = None,
    ) -> None:
        self._draw, self._names, self._by_hand = draw, _names(stages), entered_by_hand
        self._modules = {id(one): one for _, stage in stages for one in entered(stage)}
        self._keyed: dict[int, Keyed] = {}
        for one in self._modules.values():
            if _may_draw(one):
                self._attach(one)
        self.look()

    def __bool__(self) -> bool:
        return bool(self._keyed)

    def look(self) -> None:
        """See what has come since: hooks, which may draw, and generators."""
        for key, module in self._modules.items():
            if key not in self._keyed and (module._forward_hooks or module._forward_pre_hooks):
                self._attach(module)
        known = {name for one in self._keyed.values() for name in one.names}
        for one in self._keyed.values():
            one.look(known)

    def _attach(self, module: nn.Module) -> None:
        made = self._keyed[id(module)] = Keyed(module, self._draw, self._names[id(module)])
        if module is not self._by_hand:
            made.attach()

    @property
    def by_hand(self) -> Keyed | None:
        """The module that is entered by hand, if it may draw."""
        return self._keyed.get(id(self._by_hand))


def keyed(module: nn.Module, draw: Draw, prefix: str = "") -> Drawing:
    """Let every module within that may draw do so by its key, in `draw.forward`."""
    return Drawing([(prefix, module)], draw)


def _names(stages: Sequence[tuple[str, nn.Module]]) -> dict[int, list[str]]:
    """All names of each module, in the order of the model."""
    names: dict[int, list[str]] = {}
    for prefix, stage in stages:
        for name, child in stage.named_modules(prefix=prefix, remove_duplicate=False):
            names.setdefault(id(child), []).append(_name(name, child))
    return names


def _name(name: str, module: nn.Module) -> str:
    """What a module is called, though it be compiled; a slice by the layers that it has."""
    inner = module._modules.get("_orig_mod")
    if isinstance(inner, Slice):
        first, *_, last = [*inner._modules, *inner._modules]
        return f"{first}-{last}"
    return name.replace("._orig_mod", "")


def entered(module: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    """A module and those within, but not what runs inside a compiled graph."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module
    if not is_compiled(module):
        for child in module.children():
            yield from entered(child, seen)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs as one graph, in which no other module is called."""
    is_whole = "_orig_mod" in module._modules or isinstance(module, torch.jit.ScriptModule)
    return is_whole or module._compiled_call_impl is not None


def _caller(name: str, known: set[str]) -> str:
    """The innermost of the known modules that a module is part of."""
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ""


def _may_draw(module: nn.Module) -> bool:
    is_torchs = type(module).__module__.startswith("torch.nn.modules.") or type(module) is Slice
    return (
        not is_torchs
        or isinstance(module, DRAWING)
        or is_compiled(module)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or "forward" in vars(module)
    )


def _generators(device: torch.device | None) -> list[torch.Generator]:
    """The global ones that a forward on a device draws from."""
    found = [torch.default_generator]
    if device is not None and device.type == "cuda":
        found.append(
            torch.cuda.default_generators[torch.cuda._utils._get_device_index(device, True)]
        )
    return found


@contextmanager
def _watching(going: _Forward, stage: int | None) -> Iterator[Drawn]:
    """Refuse what draws from generators that are not torch's."""
    before = random.getstate(), _numpy_state()
    with going as drawn:
        yield drawn
    after = random.getstate(), _numpy_state()
    for whose, old, new in zip(("random", "numpy.random"), before, after, strict=True):
        if old != new:
            raise InputError(
                f"{'the model' if stage is None else f'stage {stage}'} draws from {whose}, which"
                f" depends on the order in which stages run; draw from torch, which is keyed:"
                f" torch.rand(()).item()"
            )


def _numpy_state() -> tuple[int, bytes]:
    state: Any = np.random.get_state(legacy=False)
    return int(state["state"]["pos"]), state["state"]["key"].tobytes()


@lru_cache(maxsize=1 << 14)
def _digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


@lru_cache(maxsize=1 << 10)
def _base(seed: int, step: int, microbatch: int) -> int:
    return _digest(f"{seed}/{step}/{microbatch}")


@lru_cache(maxsize=1 << 14)
def _word(call: Call, after: Call | None) -> int:
    return _digest(f"{call} {after}")


def _mixed(base: int, word: int) -> int:
    """A seed from two numbers (the finaliser of SplitMix64)."""
    base = (base ^ word) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    base = (base ^ base >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    base = (base ^ base >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (base ^ base >> 31) & MASK
