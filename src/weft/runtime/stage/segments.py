"""Segments: a stage cut into what its layers do one after the other, each of which runs alone.

    layer 0                                   layer 1
    attention  dispatch  experts  combine     attention  ...

A module says what its segments are: by `segments`, or by being an nn.Sequential of them. Each runs
as a stage of its own, and gets what the one before returns. Its weights, and what it draws, are
known by the names that they have in the whole stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.errors import InputError
from weft.runtime.stage.calling import Segment, is_slice

PARTS = ("attention", "dispatch", "experts", "combine")  # of every layer, in forward order


def segments_of(module: nn.Module, layers: int) -> list[nn.Module]:
    """The segments of a stage of that many layers, in forward order: four of each layer.

    Run either these or the whole module as stages: both would key what is drawn.
    """
    named = _named(module, len(PARTS) * layers)
    _refuse_hooks(module)
    _refuse_shared([child for _, child in named])
    is_sequence = not hasattr(module, "segments")
    made = []
    for index, (name, child) in enumerate(named):
        is_spread = not is_slice(module) and (index == 0 or not is_sequence)
        segment = Segment(name, child, is_numbered=not is_slice(module), is_spread=is_spread)
        made.append(segment.train(module.training))
    return list(made)


def _named(module: nn.Module, count: int) -> list[tuple[str, nn.Module]]:
    """The modules that are the segments, with their names in the stage."""
    kind, given = type(module).__name__, getattr(module, "segments", None)
    if given is not None:
        return _registered(module, [*(given() if callable(given) else given)], count)
    has_forward = type(module).forward is not nn.Sequential.forward or "forward" in vars(module)
    if not isinstance(module, nn.Sequential) or has_forward or len(module._modules) != count:
        raise InputError(
            f"{kind} does not show its segments, which run apart from each other; give it an"
            f" attribute `segments` that lists {count} of its modules ({', '.join(PARTS)} of each"
            f" layer, in this order), or make it an nn.Sequential of these"
        )
    return [*module._modules.items()]


def _registered(
    module: nn.Module, segments: Sequence[object], count: int
) -> list[tuple[str, nn.Module]]:
    kind = type(module).__name__
    if len(segments) != count:
        raise InputError(
            f"{kind} has {len(segments)} segments, not {count}; give {', '.join(PARTS)} of each"
            f" layer, in this order"
        )
    names = {id(child): name for name, child in module.named_modules() if child is not module}
    strange = [index for index, child in enumerate(segments) if id(child) not in names]
    if strange:
        raise InputError(
            f"segment {strange[0]} of {kind} is none of its modules; register it there, so that"
            f" its weights are known by their names"
        )
    return [(names[id(child)], child) for child in segments if isinstance(child, nn.Module)]


def _refuse_hooks(module: nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        raise InputError(
            f"{type(module).__name__} has hooks, which no segment of it can run; hook its segments"
        )


def _refuse_shared(segments: Sequence[nn.Module]) -> None:
    """Refuse what two segments have: each would draw, and add up gradients, for itself."""
    seen: dict[int, int] = {}
    for index, segment in enumerate(segments):
        for one in (*segment.modules(), *segment.parameters()):
            if seen.setdefault(id(one), index) != index:
                raise InputError(
                    f"segments {seen[id(one)]} and {index} share a {type(one).__name__}; give each"
                    f" modules and weights of its own"
                )
