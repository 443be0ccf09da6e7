"""The loss of a Hugging Face model apart from the model: of its logits and the labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from weft.runtime.split.hollow import AUXILIARY

IGNORED = -100  # the label of padding
CAUSAL = ("ForCausalLM", "LMHeadModel")  # where each position is to predict the next label

OwnFunction: TypeAlias = Callable[..., Tensor]  # the model's own


@dataclass(frozen=True, eq=False)
class OwnLoss:
    """The loss that a model has of its own: `loss(output, labels)` is the mean over valid labels.

    Where the model has an auxiliary loss, it returns both: that mean, and what the model adds.

    function     of the model
    call         calls it, by the kind of the model
    coefficient  of the auxiliary loss
    """

    function: OwnFunction
    call: Callable[[OwnFunction, Any, Tensor, Tensor], Tensor]
    config: Any
    is_shifted: bool
    coefficient: float

    def __call__(self, output: Any, labels: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(output, Tensor):
            return self.call(self.function, self.config, output, labels)
        main = self.call(self.function, self.config, output["logits"], labels)
        return main, self.coefficient * output[AUXILIARY]

    def count(self, labels: Tensor) -> int:
        """How many labels are valid."""
        return int(((labels[..., 1:] if self.is_shifted else labels) != IGNORED).sum())


def loss_of(model: nn.Module) -> OwnLoss | None:
    """The loss that a Hugging Face model has of its own; None where its head has no known one."""
    whole: Any = model
    kind = type(model).__name__
    call = next((call for name, call in CALLS.items() if name in kind), None)
    if call is None:
        return None
    is_shifted = any(name in kind for name in CAUSAL)
    coefficient = float(getattr(model, "router_aux_loss_coef", 0.0))
    return OwnLoss(whole.loss_function, call, whole.config, is_shifted, coefficient)


def _of_tokens(function: OwnFunction, config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    return function(logits, labels, vocab_size=config.get_text_config().vocab_size)


def _of_classified_tokens(
    function: OwnFunction, config: Any, logits: Tensor, labels: Tensor
) -> Tensor:
    return function(logits, labels, config)


def _of_sequences(function: OwnFunction, config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    return function(labels=labels, pooled_logits=logits, config=config)


CALLS = {  # by what the names of models have in them
    **dict.fromkeys(CAUSAL, _of_tokens),
    "ForMaskedLM": _of_tokens,
    "ForTokenClassification": _of_classified_tokens,
    "ForSequenceClassification": _of_sequences,
}
