"""Settings: all that decides the losses of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.cost import Transformer
from weft.errors import InputError
from weft.ir.program import Program
from weft.notation import is_huggingface
from weft.request import PlanFile, Training, is_model_file, model_called
from weft.runtime.suit import is_asynchronous
from weft.train.accelerator import chosen, seat
from weft.train.data import Data


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """All that decides a run's losses.

    planned  the plan by which the model is cut and marked, where one is given
    """

    program: Program
    data: Data
    planned: PlanFile | None = None

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
        _, ranks, gpus = seat(self.ranks)
        found = chosen(self.accelerator, ranks=ranks, gpus=gpus, is_sharing=self.share_gpus)
        return replace(self, accelerator=found, share_gpus=self.share_gpus and found == "cuda")

    @property
    def tensor(self) -> int:
        """How many ranks share every layer of a device."""
        return 1 if self.planned is None else self.planned.plan.layout.tensor

    @property
    def ranks(self) -> int:
        """Of all devices."""
        return self.program.devices * self.tensor

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
        found |= {"vocabulary": self.data.vocabulary, "bits": bits}
        if (mixture := self.mixture) is not None:
            found |= {"experts": mixture.experts, "top_k": mixture.top_k}
            found |= {"expert_ffn": mixture.expert_ffn, "expert_ranks": self.expert_ranks}
        return found

    @property
    def is_huggingface(self) -> bool:
        """Whether the model is one of Hugging Face."""
        return self.model is not None and is_model_file(self.model) and is_huggingface(self.model)

    @property
    def mixture(self) -> Transformer | None:
        """The sizes of the mixture of experts that Weft builds itself, if one is trained."""
        model = self._sizes
        return model if model is not None and model.experts else None

    @property
    def _sizes(self) -> Transformer | None:
        """Those of the model that is named or planned, unless it is one of Hugging Face."""
        if self.is_huggingface:
            return None
        if self.model is not None:
            return model_called(self.model)
        return None if self.planned is None else self.planned.plan.model

    @property
    def expert_ranks(self) -> int:
        """How many ranks hold some of the experts each."""
        groups = self.program.expert_groups
        return len(groups[0]) if groups else 1
