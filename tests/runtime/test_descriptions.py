"""What messages are, by the word of their sender: other ranks may know less of its stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.meshes import meshes
from tests.runtime.models import WIDTH, adam, batches, linear, squared
from tests.runtime.ranks import TRANSPORTS, run
from weft.errors import WeftError
from weft.ir.kinds import Direction
from weft.ir.program import Program
from weft.runtime import Pipeline
from weft.runtime.stage.values import FIXED, TENSOR, Structure
from weft.runtime.transport.descriptions import Descriptions
from weft.runtime.transport.message import Layout, Message, Route, TensorShape
from weft.schedules import interleaved_1f1b, one_f_one_b

DEADLINE = 20.0

Change = Callable[[Pipeline, int], None]  # of a pipeline, before each step


# in ranks


class Table:
    """What no outline looks into."""

    def __init__(self, values: Tensor) -> None:
        self.values = values


class Keeping(nn.Linear):
    """Makes a table when it is first called."""

    table: Table | None = None

    def forward(self, value: Tensor) -> Tensor:
        self.table = self.table or Table(torch.linspace(0, 1, value.shape[1]))
        return super().forward(value) + self.table.values


class Two(nn.Module):
    """Returns two values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(value), self.other(value)


class Passing(nn.Linear):
    """Hands the first of two values on as it is."""

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return one, super().forward(other)


class Joining(nn.Linear):
    """Reads two values, the second only in every other call."""

    def __init__(self, *, is_steady: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.is_steady, self.calls = is_steady, 0

    def forward(self, one: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        self.calls += 1
        is_read = self.is_steady or (self.calls - 1) // 2 % 2 == 0
        return super().forward(one) * (other if is_read else 1.0)


def trained(
    stages: Sequence[nn.Module], program: Program, change: Change, transport: Any
) -> list[float] | str:
    """In each rank: the losses of steps, of which the last two have a batch of another size."""
    try:
        with Pipeline(
            stages,
            program,
            loss=squared,
            optimizer=adam,
            transport=transport,
            deadline=DEADLINE,
            first_deadline=DEADLINE,
        ) as pipeline:
            losses = []
            for step, (batch, target) in enumerate(batches(4, 4)):
                change(pipeline, step)
                rows = slice(None) if step < 2 else slice(2)
                losses.append(pipeline.step(batch[rows], target[rows]).loss.item())
            return losses
    except WeftError as error:
        return str(error)


def own(pipeline: Pipeline, stage: int) -> list[nn.Module]:
    """A stage, on the rank that has it."""
    return [module for (_, index), module in pipeline.modules.items() if index == stage]


def hooking(when: int) -> Change:
    def change(pipeline: Pipeline, step: int) -> None:
        for module in own(pipeline, 0) if step == when else ():
            module.register_forward_hook(lambda *_: None)

    return change


def hooked_before(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    program = interleaved_1f1b(devices=2, microbatches=2)
    return trained(linear(4), program, hooking(0), transport)


def hooked_later(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    program = interleaved_1f1b(devices=2, microbatches=2)
    return trained(linear(4), program, hooking(2), transport)


def evaluated(pipeline: Pipeline, step: int) -> None:
    if step == 0:
        pipeline.evaluate(*batches(4, 1)[0])


def kept(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    program = interleaved_1f1b(devices=2, microbatches=2)
    return trained([Keeping(WIDTH, WIDTH), *linear(3)], program, evaluated, transport)


def learning(*, at_first: bool) -> Change:
    """Let one of the two values depend on weights that learn, or no longer, after a step."""

    def change(pipeline: Pipeline, step: int) -> None:
        for module in own(pipeline, 0) if step == 1 else ():
            assert isinstance(module, Two)
            module.one.requires_grad_(not at_first)

    return change


def thawed(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    stages = [Two(), Joining(is_steady=True)]
    stages[0].one.requires_grad_(False)
    program = one_f_one_b(devices=2, microbatches=2)
    return trained(stages, program, learning(at_first=False), transport)


def frozen_and_passed_on(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    stages = [Two(), Passing(WIDTH, WIDTH), Joining(is_steady=True)]
    program = one_f_one_b(devices=3, microbatches=2)
    return trained(stages, program, learning(at_first=True), transport)


def thawed_and_passed_on(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    stages = [Two(), Passing(WIDTH, WIDTH), Joining(is_steady=True)]
    stages[0].one.requires_grad_(False)
    program = one_f_one_b(devices=3, microbatches=2)
    return trained(stages, program, learning(at_first=False), transport)


def read_now_and_then(transport: Any) -> list[float] | str:
    torch.manual_seed(0)
    stages = [Two(), Joining(is_steady=False)]
    program = one_f_one_b(devices=2, microbatches=2)
    return trained(stages, program, lambda *_: None, transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", [hooked_before, hooked_later, kept, thawed, read_now_and_then])
def test_what_changes_where_a_stage_is_held_is_known_to_its_neighbours(
    case: Callable[[Any], list[float] | str], transport: str
) -> None:
    assert run(2, case, transport) == [case("loopback")] * 2


def test_a_gradient_that_nobody_wants_any_more_does_no_harm() -> None:
    assert run(3, frozen_and_passed_on, "gloo") == [frozen_and_passed_on("loopback")] * 3


def test_what_learns_is_refused_where_it_was_said_not_to() -> None:
    """The second rank has described its value before it knew what it would be given."""
    found = run(3, thawed_and_passed_on, "gloo")
    assert all("let requires_grad change on all ranks alike" in one for one in found)
    assert run(3, thawed_and_passed_on, "shared") == [thawed_and_passed_on("loopback")] * 3


# between two ends


class Own:
    """Shapes that the sender knows; the receiver knows others."""

    is_agreed = False

    def __init__(self, layout: Layout | None) -> None:
        self.layout, self.learned = layout, list[Layout | None]()

    def __call__(self) -> Layout | None:
        return self.layout

    def learn(self, layout: Layout | None) -> None:
        self.learned.append(layout)

    def see(self, layout: Layout) -> None:
        """Only the first counts."""


def route(microbatch: int) -> Route:
    return Route(Message(0, Direction.ACTIVATION, microbatch), 0, 1, "0F0", microbatch)


def sized(size: int) -> Layout:
    return (TensorShape((size,), torch.float32),)


def test_runs_are_taken_one_after_the_other_and_each_as_it_was_described() -> None:
    """A number comes again in a later run; most runs are described by a word: the same."""
    with meshes(2) as (one, other):
        other.deadline = DEADLINE
        sending, receiving = Descriptions(one), Descriptions(other)
        knows, guesses = [Own(sized(2)), Own(None)], [Own(sized(5)), Own(sized(5))]
        for number in range(2):
            sending.add(route(number), knows[number])
            receiving.add(route(number), guesses[number])
        assert receiving.known(route(0)) is None
        sending.begin([route(0), route(1)])
        sending.begin([route(0), route(1)])
        knows[0].layout = sized(3)
        sending.begin([route(0)])
        for _ in range(2):
            assert sending.sent(route(1), [torch.zeros(4)]) == sized(4)
        assert receiving.coming(route(0)) == (sized(2), False)
        assert receiving.coming(route(1)) == (sized(4), True)
        assert receiving.known(route(1)) is None, "its header says it"
        assert receiving.coming(route(1)) == (sized(4), True)
        assert receiving.coming(route(0)) == (sized(2), False)
        assert receiving.coming(route(0)) == (sized(3), False)
        assert guesses[0].learned == [sized(2), sized(2), sized(3)]


def test_a_value_that_is_not_as_it_was_described_is_refused() -> None:
    pair = Structure(list, (), (TENSOR, TENSOR))
    half = Structure(list, (), (TENSOR, FIXED))
    value = torch.zeros(2)
    with meshes(2) as (one, _):
        sending = Descriptions(one)
        sending.add(route(0), Own((*sized(2), *sized(2), pair)))
        assert sending.sent(route(0), [value, value, half])[-1] == pair, "it wants no gradient"
        with pytest.raises(WeftError, match="0F0 of device 0 was to be"):
            sending.sent(route(0), [value, torch.zeros(3), pair])
        sending.add(route(0), Own((*sized(2), *sized(2), half)))
        with pytest.raises(WeftError, match="what learns on this rank alone"):
            sending.sent(route(0), [value, value, pair])
