"""Asked: a question as it comes from outside, by names and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from weft.cost import MODELS, Cluster, Cost, Device, Transformer
from weft.errors import InputError
from weft.notation import read_cluster, read_cost
from weft.notation.files import text_of
from weft.plan.question import Choices, Question
from weft.request import is_model_file, measured_of, model_called
from weft.request.costs import device_called, storage_of
from weft.request.measured_run import even_layers
from weft.request.values import COUNT, FILE, TEXT, Bundle, LargeCount, Numbers, given, refuse

COST = '"weft.cost"'
UNKNOWN = Device(peak=1.0, source="what was measured has its own times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Bundle):
    """What a model is to be trained on, and with which batch; None where nothing was said."""

    cluster: Path | None = given(FILE)
    devices: int | None = given(COUNT)
    device: str | None = given(TEXT)
    batch: int | None = given(LargeCount())
    sequence: int | None = given(COUNT)
    state_bytes: tuple[float, ...] | None = given(Numbers(float, "2,4,12"))
    from_run: Path | None = given(FILE)

    def question(self, model: str | None, choices: Choices) -> Question:
        """The question; InputError where something is missing or contradicts the rest."""
        if self.from_run is not None:
            return self._again(model, self.from_run, choices)
        if model is None:
            raise InputError(
                "what is to be trained? Name a config.json, a model of `weft list models` or a"
                " cost file, or a run with --from-run"
            )
        if model not in MODELS and is_model_file(model) and COST in text_of(model):
            return self._measured(read_cost(model), choices)
        return Question(
            model=self._model(model_called(model)),
            batch=self._tokens(),
            cluster=self._cluster(),
            storage=storage_of(self.state_bytes),
            choices=choices,
        )

    def _tokens(self) -> int:
        if self.batch is None:
            raise InputError("how large is a step? --batch has its tokens, like 4194304 or 4Mi")
        return self.batch

    def _model(self, model: Transformer) -> Transformer:
        return replace(model, sequence=self.sequence or model.sequence)

    def _cluster(self) -> Cluster:
        if self.cluster is not None:
            others = {name: getattr(self, name) for name in ("devices", "device")}
            refuse("--cluster says what there is", (n for n, value in others.items() if value))
            return read_cluster(self.cluster)
        if self.devices is None or self.device is None:
            raise InputError(
                "what is it trained on? Give --devices and --device, like --devices 64 --device"
                " h100, or --cluster FILE"
            )
        return Cluster(devices=self.devices, device=device_called(self.device))

    # what was measured

    def _measured(self, cost: Cost, choices: Choices) -> Question:
        """Stages that `weft profile` has measured, on as many devices of the same kind."""
        self._refuse_sizes("a cost file has the costs of its stages")
        sizes = cost.measurement.model if cost.measurement else {}
        layers = int(sizes.get("layers", 0))
        return Question(
            measured=cost,
            layers=even_layers(layers, cost.stages) if _is_known(layers, cost.stages) else (),
            cluster=self._same(cost.stages),
            batch=_microbatches(self._tokens(), cost),
            choices=choices,
        )

    def _again(self, model: str | None, run: Path, choices: Choices) -> Question:
        """What a run has measured, on the devices that it had, unless there are others."""
        if model is not None:
            raise InputError(f"--from-run {run} has a model; leave out {model}")
        self._refuse_sizes("--from-run has the costs of its stages")
        found = measured_of(run)
        batch, layout = found.program.microbatches, found.layout
        if layout.tensor > 1:
            raise InputError(
                f"{run} has tensor parallel {layout.tensor}, and what its stages took holds for"
                f" that alone; plan its model again, with --tensor {layout.tensor}"
            )
        if choices.optimizer == "auto" and layout.copies > 1:
            kept = "shared" if layout.is_sharded else "whole"
            choices = replace(choices, optimizer=kept)
        return Question(
            measured=found.cost,
            layers=layout.layers,
            cluster=self._same(found.program.devices),
            batch=_microbatches(self.batch, found.cost) if self.batch else batch,
            choices=choices,
        )

    def _same(self, devices: int) -> Cluster:
        """Devices of the kind that was measured; a device that is named says what memory it has."""
        if self.cluster is not None:
            return self._cluster()
        device = UNKNOWN if self.device is None else device_called(self.device)
        return Cluster(devices=self.devices or devices, device=device)

    def _refuse_sizes(self, reason: str) -> None:
        names = ("sequence", "state_bytes")
        refuse(reason, (name for name in names if getattr(self, name) is not None))


def _is_known(layers: int, stages: int) -> bool:
    """Whether it follows from their number which layers each stage has."""
    return layers >= stages or layers + 2 == stages


def _microbatches(tokens: int, cost: Cost) -> int:
    """Microbatches of a batch, by their tokens where these are known."""
    sizes = cost.measurement.model if cost.measurement else {}
    each = int(sizes.get("context", 0) * sizes.get("microbatch_size", 0))
    if not each:
        return tokens
    if tokens % each:
        raise InputError(
            f"a batch of {tokens:,} tokens is not a whole number of the microbatches of {each:,}"
            f" that were measured; {max(1, tokens // each) * each:,} is"
        )
    return tokens // each
