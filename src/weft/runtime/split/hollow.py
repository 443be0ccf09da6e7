"""Hollow models: a model whose own forward runs, with what other stages have left out.

    embed   layer 0   layer 1   layer 2   layer 3   norm   head
    before  skipped   entrance  ######    exit      after          layer 2 alone

The forward makes masks, positions and rotary tables as it always does. At the entrance, hidden
states that arrived replace whatever it has computed until then; at the exit, they leave. A module
that is called elsewhere than it stands is an error, so that nothing is left out that has a use.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from weft.errors import InputError
from weft.runtime.stage.calling import Absent, Piece

HIDDEN, ROUTED, AUXILIARY = "hidden_states", "router_logits", "aux_loss"  # their names
PLAIN = (bool, int, float, str, type(None))


class Passage:
    """The hidden states of a forward under way, where they enter a stage and leave it."""

    def __init__(self, *, has_entrance: bool, has_exit: bool) -> None:
        self.has_entrance, self.has_exit = has_entrance, has_exit
        self._arrived: Tensor | None = None
        self._left: Tensor | None = None
        self._is_inside = False

    @contextmanager
    def through(self, arrived: Tensor | None) -> Iterator[None]:
        """Where a forward runs; nothing of it is kept."""
        self._arrived, self._left, self._is_inside = arrived, None, not self.has_entrance
        try:
            yield
        finally:
            self._arrived = self._left = None

    @property
    def is_inside(self) -> bool:
        """Whether the forward has come to the layers of this stage, and not left them."""
        return self._is_inside

    @property
    def is_over(self) -> bool:
        return self._left is not None

    @property
    def arrived(self) -> Tensor:
        assert self._arrived is not None
        return self._arrived

    def enter(self) -> Tensor:
        self._is_inside = True
        return self.arrived

    def leave(self, hidden: Tensor) -> None:
        if self._is_inside:
            self._left, self._is_inside = hidden, False

    def handed(self, last: Tensor, kind: str) -> Tensor:
        """The hidden states after the layers of this stage; on the last one, of the base model."""
        found = self._left if self.has_exit else last if self._is_inside else None
        if found is None or (self._arrived is not None and found.shape != self._arrived.shape):
            raise InputError(
                f"{kind} does not pass hidden states from layer to layer as most models do: it"
                f" leaves layers out, or takes what they return apart; it cannot be split so. Give"
                f" a list of modules, one per stage"
            )
        return found


class Elsewhere(Absent):
    """A module with weights that another stage has, by its name in the model."""

    def __init__(self, name: str, passage: Passage) -> None:
        super().__init__()
        self._name, self._passage = name, passage

    def __getattr__(self, attribute: str) -> Any:
        try:
            return super().__getattr__(attribute)
        except AttributeError:
            place = f"{vars(self).get('_name')}.{attribute}"
            raise AttributeError(
                f"the model reads {place}, which this stage does not have; it cannot be split so"
            ) from None


class Before(Elsewhere):
    """What the first stage has ahead of the layers."""

    def forward(self, *_: Any, **__: Any) -> Tensor:
        if self._passage.is_inside or self._passage.is_over:
            refuse_place(self._name, "after", "first")
        return self._passage.arrived.detach()  # of the right shape and type for masks


class After(Elsewhere):
    """What the last stage has after the layers."""

    def forward(self, *given: Any, **named: Any) -> Any:
        if not self._passage.is_over:
            refuse_place(self._name, "ahead of", "last")
        return given[0] if given else next(iter(named.values()), None)


class Skipped(Absent):
    """A layer of another stage, with its plain attributes, which the model may look at."""

    def __init__(self, layer: nn.Module, passage: Passage) -> None:
        super().__init__()
        plain = {name: one for name, one in vars(layer).items() if type(one) in PLAIN}
        vars(self).update(plain)
        self._passage, self._is_tuple = passage, returns_tuple(type(layer).forward)

    def forward(self, *given: Any, **named: Any) -> Any:
        hidden = self.passed(given[0] if given else named[HIDDEN])
        return (hidden,) if self._is_tuple else hidden

    def passed(self, hidden: Tensor) -> Tensor:
        return hidden


class Entrance(Skipped):
    """The layer ahead of a stage, after which it goes on with what arrived."""

    def passed(self, hidden: Tensor) -> Tensor:
        return self._passage.enter()


class Exit(Skipped):
    """The layer after a stage, which gets what it hands on."""

    def passed(self, hidden: Tensor) -> Tensor:
        self._passage.leave(hidden)
        return hidden


@cache
def returns_tuple(forward: Callable[..., Any]) -> bool:
    """Whether layers return a tuple, as their code shows: annotations of many are wrong."""
    try:
        code = inspect.getsource(inspect.unwrap(forward))
    except (OSError, TypeError):
        return False
    body = ast.parse(textwrap.dedent(code))
    tuples = {
        ast.unparse(target)
        for node in ast.walk(body)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
    }
    found = [node.value for node in ast.walk(body) if isinstance(node, ast.Return)]
    last = found[-1] if found else None
    return isinstance(last, ast.Tuple) or (isinstance(last, ast.Name) and last.id in tuples)


def refuse_place(name: str, where: str, stage: str) -> None:
    raise InputError(
        f"the model calls {name} {where} its layers, and only the {stage} stage has it; it cannot"
        f" be split so. Give a list of modules, one per stage"
    )


def hollow(module: nn.Module) -> nn.Module:
    """A copy of a container alone: the same weights and children, in places of its own.

    What its forward draws, the stage draws: every stage runs it.
    """
    twin: nn.Module = object.__new__(type(module))
    own = {name: copy.copy(one) for name, one in vars(module).items() if isinstance(one, dict)}
    vars(twin).update({**vars(module), **own}, is_hollow=True)
    return twin


class Called(NamedTuple):
    """How a hollow model is called.

    base       the name of the base model, which has the layers; empty where that is the model
    options    arguments that are the same in every forward
    is_routed  whether layers give logits of routers, for a loss of the whole model
    """

    base: str
    options: Mapping[str, Any]
    is_routed: bool


def share(piece: nn.Module, model: nn.Module) -> None:
    """Let a module have what a model has, under the same names, in the same places."""
    for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        vars(piece)[name] = vars(model)[name]
    piece.training = model.training


class ModelPiece(Piece):
    """Some layers of a model, run by the model's own forward.

    The first has the embeddings, the last the head; those before the last return hidden states
    beside the batch.
    """

    unread = ("labels",)  # which are the target

    def __init__(
        self, whole: nn.Module, passage: Passage, how: Called, takes: Sequence[str], key: str
    ) -> None:
        super().__init__(takes, key)
        share(self, whole)
        self._whole, self._passage, self._how = (whole,), passage, how  # in a tuple: no child

    def forward(self, **given: Any) -> Any:
        (whole,) = self._whole
        arrived, earlier = given.pop(HIDDEN, None), given.pop(ROUTED, ())
        if arrived is not None and "input_ids" not in given:
            given["inputs_embeds"] = arrived.detach()
        base = self.get_submodule(self._how.base) if self._how.base else whole
        whole.training = self.training
        with self._passage.through(arrived):
            out = base(**given, **self._how.options)
            hidden = self._passage.handed(out[0], type(whole).__name__)
        if self._how.is_routed:
            out.router_logits = (*earlier, *(out.router_logits or ()))
        if not self._passage.has_exit:
            return returned(self._headed(out, given))
        given.pop("inputs_embeds", None)
        return {**given, HIDDEN: hidden} | (
            {ROUTED: out.router_logits} if self._how.is_routed else {}
        )

    def _headed(self, out: Any, given: Mapping[str, Any]) -> Any:
        """What the whole model makes of what its base returned."""
        (whole,) = self._whole
        if not self._how.base:
            return out
        computed = Computed(self._how.base, self._passage, out, given)
        vars(whole)["_modules"] = {**self._modules, self._how.base: computed}
        try:
            return whole(**given, **self._how.options)
        finally:
            vars(whole)["_modules"] = self._modules


class Computed(Elsewhere):
    """The base model, once it has run."""

    def __init__(self, name: str, passage: Passage, out: Any, given: Mapping[str, Any]) -> None:
        super().__init__(name, passage)
        self._out, self._given = out, given

    def forward(self, *given: Any, **named: Any) -> Any:
        passed = {id(one) for one in (*given, *named.values())}
        for name, one in self._given.items():
            if isinstance(one, Tensor) and id(one) not in passed:
                raise InputError(
                    f"the model changes {name} before its base model gets it, which stages do not;"
                    f" change it in the batch, or give a list of modules, one per stage"
                )
        return self._out


def returned(out: Any) -> Any:
    """What the loss gets: logits, with the auxiliary loss if there is one; else all tensors."""
    named = {name: one for name, one in out.items() if isinstance(one, Tensor)}
    if "logits" not in named:
        return named
    return (
        {name: named[name] for name in ("logits", AUXILIARY)}
        if AUXILIARY in named
        else named["logits"]
    )
