"""Failing together: whatever goes wrong on one rank ends the waits of all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from weft.errors import Disagreement, InputError, NonfiniteError, RankError, SaveError
from weft.runtime.device.place import current
from weft.runtime.ranks.blame import failure_of
from weft.runtime.ranks.world import World


class Together:
    """Guards what a pipeline does on its device while other ranks may wait for it.

    is_asynchronous  whether other ranks may not have come as far when something fails
    """

    def __init__(self, world: World, device: torch.device, *, is_asynchronous: bool) -> None:
        self._world, self._device, self._is_asynchronous = world, device, is_asynchronous
        self.is_closed = self.has_failed = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.is_closed:
            raise InputError("this pipeline is closed: make another one to go on")
        try:
            with current(self._device), _outside_inference_mode():
                yield
            self._world.end()
        except Disagreement:
            raise  # all ranks raise it
        except SaveError:
            self._world.end()  # all ranks raise it, and may go on
            raise
        except NonfiniteError as error:
            if self._is_asynchronous:  # other ranks are not there yet
                self._world.fail(self._reason(error))
            raise
        except BaseException as error:
            self.has_failed = True
            self._note_known(error)
            self._world.fail(self._reason(error))
            raise

    def _note_known(self, error: BaseException) -> None:
        """Add to an error what has failed elsewhere: torch's do not know why a peer has left."""
        try:
            self._world.look()
        except RankError as known:
            if str(known) not in str(error):
                error.add_note(f"known of other ranks by then: {known}")

    def _reason(self, error: BaseException) -> str:
        notes = getattr(error, "__notes__", ())
        return "; ".join([failure_of(error, self._world.devices.start), *notes])


def _outside_inference_mode() -> AbstractContextManager[object]:
    """What is made in it is of no use to a step that follows; all else stays as it is."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
