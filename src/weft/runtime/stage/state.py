"""State: what a stage keeps from forward to forward, watched for changes that are locked."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.device.shards import is_gathered
from weft.runtime.stage.locks import OPEN, Locks
from weft.runtime.stage.values import fingerprint


class State:
    """What one copy of a stage keeps: weights, buffers, numbers and tensors in attributes."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        self._module, self._stage, self._is_gathered = module, stage, is_gathered(module)
        self._trained = dict(module.named_parameters())
        self._locks, self._versioned, self._is_watched = OPEN, set[nn.Parameter](), False
        self._before: dict[str, object] | None = {}  # None until the first forward

    def refuse_exchanged(self) -> None:
        """Refuse parameters in the place of those that are trained, which would stay as they are.

        Where weights are gathered, others take their place in every pass.
        """
        if self._is_gathered:
            return
        now = dict(self._module.named_parameters())
        names = {*now, *self._trained}
        changed = sorted(name for name in names if now.get(name) is not self._trained.get(name))
        if changed:
            raise InputError(
                f"stage {self._stage} has another parameter {changed[0]} than it had when the"
                f" pipeline was made, which would not be trained. Change the values of those that"
                f" are there (weight.copy_(...) under torch.no_grad(), or load_state_dict without"
                f" assign=True), or make the pipeline again"
            )

    def begin(self, locks: Locks, versioned: set[nn.Parameter], *, is_watched: bool) -> None:
        """Watch for these from now on; watched closely, data of weights are looked at too.

        Updates change weights that have versions meanwhile.
        """
        self._locks, self._versioned, self._is_watched = locks, versioned, is_watched
        self._before = None

    def look(self) -> None:
        """Before a forward: the first sees weights as they are to stay, gathered by then."""
        if self._before is None:
            self._before = dict(self._found())

    def check(self) -> None:
        """Refuse a forward that has changed what it may not."""
        if not self._before:
            return
        for name, now in self._found():
            if name not in self._before or self._before[name] != now:
                why = self._locks.everything or self._locks.weights or self._locks.numbers
                raise InputError(f"stage {self._stage} changes its {name}; {why}")

    def _found(self) -> Iterator[tuple[str, object]]:
        """What is to stay, by name."""
        if self._locks.weights and not self._is_gathered:
            for name, weight in self._module.named_parameters():
                if weight not in self._versioned:
                    yield f"weight {name}", self._mark(weight)
        if self._locks.everything:
            for name, buffer in self._module.named_buffers():
                yield f"buffer {name}", (id(buffer), buffer._version)
        if self._locks.everything or self._locks.numbers:
            yield from self._attributes()

    def _attributes(self) -> Iterator[tuple[str, object]]:
        """Numbers, and which tensors there are: some are made when they are first needed."""
        for path, module in self._module.named_modules():
            for name, value in vars(module).items():
                place = f"attribute {path}.{name}".replace(" .", " ")
                if type(value) in (int, float):
                    yield place, value
                elif isinstance(value, Tensor):
                    yield place, True

    def _mark(self, weight: Tensor) -> object:
        return id(weight), weight._version, fingerprint(weight) if self._is_watched else 0.0
