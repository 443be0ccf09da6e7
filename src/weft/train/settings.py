"""Settings: all that decides the losses of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.ir.program import Program
from weft.request import Training
from weft.runtime.suit import is_asynchronous
from weft.train.accelerator import chosen, seat
from weft.train.data import Data


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """All that decides a run's losses."""

    program: Program
    data: Data

    def __post_init__(self) -> None:
        Training.__post_init__(self)  # a class with slots is made twice: super() finds the first
        asked = self.switch_after or self.predict or self.temper is not None
        if asked and not is_asynchronous(self.program):
            raise InputError(
                f"{self.program.name} is synchronous: --switch-after, --predict and --temper are"
                f" for asynchronous schedules"
            )

    def on_this_machine(self) -> Settings:
        """The same with `auto` decided; InputError where this machine has too few GPUs."""
        _, ranks, gpus = seat(self.program.devices)
        found = chosen(self.accelerator, ranks=ranks, gpus=gpus, is_sharing=self.share_gpus)
        return replace(self, accelerator=found, share_gpus=self.share_gpus and found == "cuda")

    @property
    def sequences(self) -> int:
        """Of a step."""
        return self.program.microbatches * self.microbatch_size

    @property
    def sizes(self) -> dict[str, float]:
        """What the seconds of a stage depend on, by name."""
        names = ("layers", "hidden", "heads", "context", "microbatch_size", "dropout")
        found = {name: getattr(self, name) for name in names}
        bits = 32 if self.precision is None else 16
        return found | {"vocabulary": self.data.vocabulary, "bits": bits}
