"""Contexts: what forwards and backwards of a stage run in.

forward    keyed randomness, autocast as it was, the weights and buffers of that forward
backward   the same for checkpoints, which run modules again; no autocast of its own
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.runtime.stage.alike import DrawnAlike
from weft.runtime.stage.cast import Cast, without_autocast
from weft.runtime.stage.deferred import Recorder
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.saved import Saved
from weft.runtime.stage.seeds import Drawn
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.undrawn import Undrawn
from weft.runtime.stage.versioned import Versioned

NOTHING = nullcontext()


class Contexts:
    """Makes those of one copy of a stage."""

    def __init__(
        self,
        draw: Draw,
        role: Role,
        device: torch.device,
        *,
        drawing: KeyedModules,
        slots: Slots,
        versioned: Versioned,
        recorder: Recorder,
        groups: Sequence[dist.ProcessGroup] = (),
    ) -> None:
        self._draw, self._role, self._device, self._kind = draw, role, device, device.type
        self._drawing, self._slots, self._versioned = drawing, slots, versioned
        self._recorder, self._groups = recorder, groups
        self.look()

    def look(self) -> None:
        """See who may draw by now."""
        self._drawing.look()
        is_loss_drawing = self._role.loss is not None and self._role.is_loss_drawing
        self._is_drawing = bool(self._drawing) or (is_loss_drawing and not self._role.is_beside)
        is_watched = self._draw.is_watching(self._draw.step)
        self._is_watched = is_watched and (self._role.is_beside or bool(self._groups))
        self._by_hand = self._drawing.by_hand

    def forward(
        self, microbatch: int, cast: Cast | None, swap: dict[str, Tensor]
    ) -> AbstractContextManager[Drawn | None]:
        """Where a forward runs: what it draws is keyed."""
        drawing: AbstractContextManager[Drawn | None] = (
            self._draw.forward(microbatch, self._role.index, self._device, self._by_hand)
            if self._is_drawing
            else NOTHING
        )
        precision = self._role.precision
        is_cast = cast is not None or precision.autocast is not None
        if not swap and not is_cast and not self._is_watched:
            return drawing
        cast = cast or Cast.here(self._device, precision)
        watched = self._watching() if self._is_watched else NOTHING
        return _together(drawing, watched, cast.again(), self._slots.holding(swap))

    def _watching(self) -> AbstractContextManager[object]:
        """Where the first forwards run, if something may not draw, or not as it likes."""
        if self._role.is_beside:
            return Undrawn(self._role.index)
        return DrawnAlike(self._role.index, self._draw, self._groups, self._device)

    def backward(self, saved: Saved) -> AbstractContextManager[object]:
        """Where a backward runs: a checkpoint in it finds what the forward found."""
        going: AbstractContextManager[object] = (
            NOTHING if self._role.is_beside else self._draw.backward(saved.drawn)
        )
        if saved.tape is not None:
            going = self._recorder.recording(saved.tape, going)
        is_cast = torch.is_autocast_enabled(self._kind)
        if not is_cast and not self._versioned:
            return going
        kinds: list[AbstractContextManager[object]] = [going]
        if is_cast:
            kinds.append(without_autocast(self._device))
        if self._versioned.is_following:
            kinds.append(self._without_forwards())
        elif self._versioned:
            kinds.append(self.weights(saved))
        return _together(NOTHING, *kinds)

    def weights(self, saved: Saved) -> AbstractContextManager[object]:
        """Where weight gradients are computed: by the weights of the forward."""
        if not self._versioned:
            return NOTHING
        return self._slots.holding(self._versioned.leaves(saved.versions))

    @contextmanager
    def _without_forwards(self) -> Iterator[None]:
        """Refuse a backward that runs a forward again."""
        hook = register_module_forward_pre_hook(lambda *_: self._versioned.refuse_checkpoint())
        try:
            yield
        finally:
            hook.remove()


@contextmanager
def _together(
    drawing: AbstractContextManager[Drawn | None], *others: AbstractContextManager[object]
) -> Iterator[Drawn | None]:
    with ExitStack() as stack:
        drawn = stack.enter_context(drawing)
        for other in others:
            stack.enter_context(other)
        yield drawn
