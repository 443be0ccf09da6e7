"""Segments: a stage cut into what its layers do one after the other, each of which runs alone.

    embedding, layer 0 (dense)   layer 1                                 head
    attention        experts     attention  dispatch  experts  combine   experts

A module says what its segments are: by `segments`, or by being an nn.Sequential of them. So does
each layer of an nn.Sequential: four are those of an expert layer, two those of a dense one. Modules
that do not say so go with the attention of the next layer; those after the last are a layer of
their own. A program may also cut an nn.Sequential into plain layers: consecutive modules, as many
for each. Each segment runs as a stage of its own, and gets what the one before returns. Its
weights, and what it draws, are known by the names that they have in the whole stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from weft.errors import InputError
from weft.ir.kinds import Layer, Part
from weft.runtime.stage.calling import Segment, is_slice
from weft.runtime.stage.rehearsal import refuse_more

PARTS = ("attention", "dispatch", "experts", "combine")  # of every expert layer, in forward order

NamedModules: TypeAlias = list[tuple[str, nn.Module]]


class _Shown(NamedTuple):
    """The layers of a stage, and the modules of each segment; whether it takes a tuple spread."""

    layers: list[Layer]
    segments: list[tuple[NamedModules, bool]]


def layers_of(stages: Sequence[nn.Module]) -> list[tuple[Layer, ...]]:
    """The layers of each stage, as its modules show them: what `lower.experts` is given."""
    return [tuple(_shown(stage).layers) for stage in stages]


def layers_of_numbers(segments: Sequence[int]) -> list[Layer]:
    """The layers that a program cuts a stage into, given the numbers of all its segments."""
    groups = groupby(sorted(segments), lambda number: number // len(Part))
    found = [tuple(Part(number % len(Part)) for number in numbers) for _, numbers in groups]
    known = {layer.value: layer for layer in Layer}
    for layer, parts in enumerate(found):
        if parts not in known:
            names = " and ".join(part.name.lower() for part in parts)
            raise InputError(
                f"layer {layer} of a stage is cut into {names} alone; a layer has all four parts,"
                f" or attention and experts, or experts"
            )
    return [known[parts] for parts in found]


def segments_of(module: nn.Module, layers: int | Sequence[Layer]) -> list[nn.Module]:
    """The segments of a stage of these layers, in forward order; of a number of expert layers.

    Run either these or the whole module as stages: both would key what is drawn.
    """
    wanted = [Layer.EXPERTS] * layers if isinstance(layers, int) else [*layers]
    if wanted == [Layer.PLAIN]:
        return [module]  # as it is, whatever it shows
    shown = _groups(module, wanted) or _parts(module, wanted) or _shown(module)
    if shown.layers != wanted:
        raise _mismatch(module, shown, wanted)
    _refuse_hooks(module)
    _refuse_shared([[child for _, child in named] for named, _ in shown.segments])
    is_numbered = not is_slice(module)
    made = [
        Segment(named, is_numbered=is_numbered, is_spread=is_spread)
        for named, is_spread in shown.segments
    ]
    for segment in made:
        segment.training = module.training  # its modules keep theirs: some may be in another mode
    return [*made]


def pieces_of(module: nn.Module) -> int:
    """Into how many plain layers a stage can be cut; 1 where it has to stay whole."""
    children = _children(module)
    is_compiled = module._compiled_call_impl is not None
    is_hooked = any(map(_has_hooks, (module, *(child for _, child in children))))
    if is_compiled or is_hooked or _shared([[child] for _, child in children]) is not None:
        return 1
    return max(1, len(children))


def _groups(module: nn.Module, layers: Sequence[Layer]) -> _Shown | None:
    """The modules of an nn.Sequential, in as many groups as it is cut into plain layers."""
    children, count = _children(module), len(layers)
    if {*layers} != {Layer.PLAIN} or not 1 < count <= len(children):
        return None
    cuts = [len(children) * at // count for at in range(count + 1)]
    first = not is_slice(module)
    groups = [children[start:end] for start, end in pairwise(cuts)]
    return _Shown([*layers], [(group, first and not at) for at, group in enumerate(groups)])


def _parts(module: nn.Module, layers: Sequence[Layer]) -> _Shown | None:
    """What an nn.Sequential of as many modules shows that are the segments themselves."""
    children = _children(module)
    count = sum(len(layer.value) for layer in layers)
    is_listed = len(children) == count and {*layers} == {Layer.EXPERTS}
    if not is_listed or any(hasattr(child, "segments") for _, child in children):
        return None
    first = not is_slice(module)
    return _Shown([*layers], [([one], first and not at) for at, one in enumerate(children)])


def _shown(module: nn.Module) -> _Shown:
    """The layers that a stage shows."""
    if hasattr(module, "segments"):
        return _own(module, "")
    found, waiting = _Shown([], []), NamedModules()
    for name, child in _children(module):
        if not hasattr(child, "segments"):
            waiting.append((name, child))
            continue
        _refuse_hooks(child)
        layers, ((first, _), *others) = _own(child, f"{name}.")
        is_spread = not found.segments and not is_slice(module)
        found.layers.extend(layers)
        found.segments.extend([([*waiting, *first], is_spread), *others])
        waiting = []
    if waiting or not found.layers:
        found.layers.append(Layer.PLAIN)
        found.segments.append((waiting, False))
    return found


def _own(module: nn.Module, prefix: str) -> _Shown:
    """What `segments` of a module says; each of them takes a tuple spread."""
    kind = type(module).__name__
    given: Any = module.segments
    is_method = callable(given) and not isinstance(given, nn.Module)  # as an nn.ModuleList is
    modules: list[nn.Module] = [*(given() if is_method else given)]
    expert, rest = divmod(len(modules), len(PARTS))
    if len(modules) != 2 and (rest or not expert):
        raise InputError(
            f"{kind} has {len(modules)} segments; give {', '.join(PARTS)} of each layer, in this"
            f" order, or attention and perceptron of a dense one"
        )
    names = {id(child): name for name, child in module.named_modules() if child is not module}
    strange = [index for index, child in enumerate(modules) if id(child) not in names]
    if strange:
        raise InputError(
            f"segment {strange[0]} of {kind} is none of its modules; register it there, so that"
            f" its weights are known by their names"
        )
    _refuse_left_out(module, modules)
    refuse_more(module, modules)
    segments = [([(f"{prefix}{names[id(child)]}", child)], True) for child in modules]
    return _Shown([Layer.EXPERTS] * expert or [Layer.DENSE], segments)


def _refuse_left_out(module: nn.Module, segments: Sequence[nn.Module]) -> None:
    """Refuse what a module has and no segment of it: it would not run, nor learn."""
    known = {id(one) for segment in segments for one in _all_of(segment)}
    own = [*module.named_parameters(), *module.named_buffers(), *_leaves(module)]
    for name, one in own:
        if id(one) not in known:
            raise InputError(
                f"{name} of {type(module).__name__} is in none of its segments, which are all of it"
                f" that runs; let one of them have it"
            )


def _leaves(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules within that do something, and have no others."""
    for name, one in module.named_modules():
        if one is not module and not one._modules and _does_something(one):
            yield name, one


def _does_something(module: nn.Module) -> bool:
    return type(module).forward not in (nn.Module.forward, nn.Identity.forward)


def _all_of(module: nn.Module) -> Iterator[object]:
    """All modules, weights and buffers within."""
    yield from _held([module])
    yield from module.buffers()


def _children(module: nn.Module) -> NamedModules:
    """The modules of an nn.Sequential; none of any other."""
    has_forward = type(module).forward is not nn.Sequential.forward or "forward" in vars(module)
    is_sequence = isinstance(module, nn.Sequential) and not has_forward
    return [*module._modules.items()] if is_sequence else []  # type: ignore[list-item]


def _mismatch(module: nn.Module, shown: _Shown, wanted: Sequence[Layer]) -> InputError:
    kind, count = type(module).__name__, len(PARTS) * len(wanted)
    if hasattr(module, "segments"):
        return InputError(
            f"{kind} has {len(shown.segments)} segments, not {count}; give {', '.join(PARTS)} of"
            f" each layer, in this order"
        )
    if shown.layers == [Layer.PLAIN]:
        return InputError(
            f"{kind} does not show its segments, which run apart from each other; give it an"
            f" attribute `segments` that lists {count} of its modules ({', '.join(PARTS)} of each"
            f" layer, in this order), or make it an nn.Sequential of these"
        )
    found, cut = (", ".join(one.name.lower() for one in many) for many in (shown.layers, wanted))
    return InputError(
        f"a stage has these layers: {found}; and the program cuts it into {cut}. Cut it by"
        f" lower.experts(program, layers=weft.runtime.layers_of(stages))"
    )


def _refuse_hooks(module: nn.Module) -> None:
    if _has_hooks(module):
        raise InputError(
            f"{type(module).__name__} has hooks, which no segment of it can run; hook its segments"
        )


def _has_hooks(module: nn.Module) -> bool:
    own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    return any(own) or bool(module._backward_pre_hooks)


def _refuse_shared(segments: Sequence[Sequence[nn.Module]]) -> None:
    """Refuse what two segments have: each would draw, and add up gradients, for itself."""
    shared = _shared(segments)
    if shared is not None:
        one, other, kind = shared
        raise InputError(
            f"segments {one} and {other} share a {kind}; give each modules and weights of its own"
        )


def _shared(segments: Sequence[Sequence[nn.Module]]) -> tuple[int, int, str] | None:
    """Two segments that have something in common, and the name of its type."""
    seen: dict[int, int] = {}
    for index, segment in enumerate(segments):
        for one in _held(segment):
            if seen.setdefault(id(one), index) != index:
                return seen[id(one)], index, type(one).__name__
    return None


def _held(modules: Sequence[nn.Module]) -> Iterator[object]:
    """All modules and weights within."""
    for module in modules:
        yield from module.modules()
        yield from module.parameters()
