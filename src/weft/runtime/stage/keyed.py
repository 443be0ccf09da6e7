"""Keyed modules: those that may draw, entered and left by their names in the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from weft.runtime.stage.calling import Absent, Piece, Segment, Slice
from weft.runtime.stage.modules import entered, is_compiled
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.seeds import ROOT, Call, Drawn, Stretch, digest, mixed, word_of

SHARD = "weft_shard"  # attribute of modules that work on a shard of values, and draw apart
DRAWING = (  # of torch's own modules; of all others none draws
    nn.modules.dropout._DropoutNd,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)


class KeyedModule:
    """A module that may draw: entered and left with its key."""

    def __init__(self, module: nn.Module, draw: Draw, names: list[str]) -> None:
        self._module, self._draw, self.names = module, draw, names
        self._first = Call(names[0], 0)
        self._word = word_of(self._first, None)
        self._callers: dict[str, list[str]] = {}
        self._own: list[tuple[str, torch.Generator]] = []
        self.shard: int = getattr(module, SHARD, 0)

    def __deepcopy__(self, memo: dict[int, object]) -> KeyedModule:
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
        stretch = drawn.stretches.get(torch.default_generator.initial_seed())
        if stretch is None:  # somebody else has seeded the generator
            stretch = draw.stack[-1][0] if draw.stack else drawn.stretch(ROOT)
        call = drawn.call(stretch, self)
        draw.stack.append((stretch, call))
        self._seed(drawn.stretch(call))

    def begin(self, drawn: Drawn) -> None:
        """Enter as the first; nobody has to leave."""
        first, seed = self._first, mixed(drawn.base, self._word)
        drawn.counts[first.name] = 1
        if self.shard:
            drawn.shards[first] = self.shard
            seed = mixed(seed, self.shard)
        stretch = drawn.stretches[seed] = Stretch(first, None, seed)
        self._seed(stretch)

    def _seed(self, stretch: Stretch) -> None:
        self._draw.seed_all(stretch)
        for name, generator in self._own:
            generator.manual_seed(mixed(stretch.seed, digest(name)))

    def leave(self) -> None:
        draw = self._draw
        assert draw.drawn is not None
        stretch, call = draw.stack.pop()
        draw.seed_all(draw.drawn.stretch(stretch.call, call))

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


class KeyedModules:
    """The modules of some stages that may draw, by their keys in `draw.forward`.

    Each stage is called by its prefix.

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
        self._keyed: dict[int, KeyedModule] = {}
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
        made = self._keyed[id(module)] = KeyedModule(module, self._draw, self._names[id(module)])
        if module is not self._by_hand:
            made.attach()

    @property
    def by_hand(self) -> KeyedModule | None:
        """The module that is entered by hand, if it may draw."""
        return self._keyed.get(id(self._by_hand))


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
    own = module if inner is None else inner
    if isinstance(own, Piece):
        return own.key
    if isinstance(inner, Slice):
        first, *_, last = [*inner._modules, *inner._modules]
        return f"{first}-{last}"
    return name.replace("._orig_mod", "")


def _caller(name: str, known: set[str]) -> str:
    """The innermost of the known modules that a module is part of."""
    while name:
        name = name.rpartition(".")[0]
        if name in known:
            return name
    return ""


def _may_draw(module: nn.Module) -> bool:
    if isinstance(module, Absent) or "is_hollow" in vars(module):
        return False  # in each of several stages: what it draws itself, the stage draws
    kind = type(module)
    is_torchs = kind.__module__.startswith("torch.nn.modules.") or kind in (Slice, Segment)
    is_still = isinstance(module, Piece) and not module.is_drawing
    return (
        not (is_torchs or is_still)
        or isinstance(module, DRAWING)
        or is_compiled(module)
        or bool(module._forward_hooks or module._forward_pre_hooks)
        or "forward" in vars(module)
    )
