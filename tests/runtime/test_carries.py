"""What edges carry: values that skip stages, masks that have no gradient, readers far apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, adam, batches, squared
from tests.runtime.ranks import over_transports
from weft.errors import InputError
from weft.ir.graph import Graph, Stage
from weft.ir.program import Program
from weft.lower import executable, one_wire, over
from weft.runtime import Pipeline, Reference, Stages
from weft.runtime.stage.calling import Piece
from weft.schedules import REGISTRY, Shape, one_f_one_b
from weft.verify import verify


class Start(Piece):
    """Gives a value that two stages read, one that all later stages read, and the mask."""

    def __init__(self) -> None:
        super().__init__(("x", "mask"), "start")
        self.start = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        wide = self.start(x)
        found = {"x": wide.tanh(), "early": wide, "unread": wide.sum()}
        return found if mask is None else {**found, "mask": mask}


class Later(Piece):
    def __init__(self, name: str, *, is_last: bool) -> None:
        super().__init__(("x", "early", "mask"), name)
        self.add_module(name, nn.Linear(WIDTH, WIDTH))
        self._is_last = is_last

    def forward(self, x: Tensor, early: Tensor | None = None, mask: Tensor | None = None) -> Any:
        out = next(iter(self._modules.values()))(x)  # type: ignore[misc]
        out = out if early is None else out + early
        out = out if mask is None else out * mask
        return out if self._is_last else {"x": out}


GRAPH = Graph(
    (Stage(),) * 4,
    ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3)),
    fixed=frozenset({(0, 2)}),
)
CARRIES = {(0, 1): ("x", "early", "mask"), (0, 2): ("mask",), (0, 3): ("early",)}


def stages() -> Stages:
    torch.manual_seed(0)
    later = [Later(f"later{k}", is_last=k == 3) for k in (1, 2, 3)]
    return Stages([Start(), *later], graph=GRAPH, carries=CARRIES)


def unsplit(found: Stages, batch: dict[str, Tensor]) -> Tensor:
    """The same in one go, without pieces."""
    start, first, second, third = (next(one.children()) for one in found)
    wide, mask = start(batch["x"]), batch["mask"]
    x = (first(wide.tanh()) + wide) * mask
    out: Tensor = third(second(x) * mask) + wide
    return out


def masked(rows: int, steps: int) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Batches with a mask of integers."""
    keep = (torch.arange(rows * WIDTH) % 3 > 0).long().reshape(rows, WIDTH)
    return [({"x": one, "mask": keep}, target) for one, target in batches(rows, steps)]


def program_of(name: str) -> Program:
    """A schedule of four stages."""
    entry = REGISTRY[name]
    least, most = entry.stages_per_device
    count = least if most else 2
    devices = 4 // count
    shape = Shape(
        devices=devices,
        microbatches=2 * devices,
        stages_per_device=count,
        updates=2 * devices + 2,
        round=2 * devices if name == "wpipe" else 0,
    )
    return entry.program(shape)


def differences_by_schedule(names: Sequence[str], transport: Any = "auto") -> dict[str, list[str]]:
    return {name: found for name in names if (found := _differences(name, transport))}


def _differences(name: str, transport: Any) -> list[str]:
    program, data = program_of(name), masked(23, 3)
    if program.period is None:
        return differences(stages(), program, data, transport=transport)
    made, copies = stages(), stages()
    settings: dict[str, Any] = {"loss": squared, "optimizer": adam}
    pipeline = Pipeline(made, program, transport=transport, **settings)
    reference = Reference(copies, program, **settings)
    found = [
        f"the loss of update {update}"
        for update, (batch, target) in enumerate(data)
        if not torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target))
    ]
    pipeline.drain()
    return found + [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, copies[stage].state_dict()[name])
    ]


def test_every_schedule_of_a_chain_carries_what_the_edges_say() -> None:
    assert differences_by_schedule([one.name for one in REGISTRY]) == {}


@pytest.mark.parametrize("names", [("1f1b", "chimera"), ("pipedream-2bw",)])
def test_on_ranks(names: tuple[str, ...]) -> None:
    assert over_transports(4, differences_by_schedule, names) == [[{}] * 4] * 2


def test_gradients_are_those_of_the_model_in_one_go() -> None:
    found, program = stages(), one_f_one_b(devices=4, microbatches=4)
    whole = copy.deepcopy(found)
    ((batch, target),) = masked(12, 1)
    result = Pipeline(found, program, loss=squared).step(batch, target)
    loss = squared(unsplit(whole, batch), target)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result.loss, loss)
    for mine, other in zip(found, whole, strict=True):
        for one, two in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


def test_a_mask_that_is_not_given_is_left_out() -> None:
    assert differences(stages(), one_f_one_b(devices=4, microbatches=4), batches(11, 2)) == []


def test_nothing_comes_back_along_a_fixed_edge() -> None:
    program = over(one_f_one_b(devices=4, microbatches=4), GRAPH)
    pipeline = Pipeline(stages(), program, loss=squared)
    assert verify(pipeline.program).is_valid
    actions, edge = pipeline.program.actions, GRAPH.edges.index((0, 2))
    kinds = {one.kind.name for one in actions if one.edge == edge}
    assert kinds == {"SEND_ACTIVATION", "RECV_ACTIVATION"}


def test_a_value_that_learns_is_refused_on_a_fixed_edge() -> None:
    wrong = stages()
    wrong.carries = {**CARRIES, (0, 2): ("early",)}
    with pytest.raises(InputError, match="depends on weights, and no gradient comes back"):
        Pipeline(wrong, one_f_one_b(devices=4, microbatches=4), loss=squared).step(*masked(8, 1)[0])


def test_a_stage_without_names_cannot_be_picked_from() -> None:
    made = Stages([nn.Linear(WIDTH, WIDTH) for _ in range(2)], carries={(0, 1): ("x",)})
    with pytest.raises(InputError, match="returns a tensor, and x of it travel"):
        Pipeline(made, one_f_one_b(devices=2, microbatches=2), loss=squared).step(*batches(4, 1)[0])


def test_a_program_of_another_graph_is_refused() -> None:
    program = REGISTRY["gpipe"].program(Shape.of_graph(Graph.two_tower(1), microbatches=2))
    with pytest.raises(InputError, match="for a graph with other edges"):
        over(program, Graph((Stage(),) * 3, ((0, 1), (0, 2), (1, 2))))
    with pytest.raises(InputError, match="has 3 stages and the model 4"):
        over(program, GRAPH)


def test_names_that_no_stage_takes_are_refused() -> None:
    pipeline = Pipeline(stages(), one_f_one_b(devices=4, microbatches=4), loss=squared)
    ((batch, target),) = masked(8, 1)
    with pytest.raises(InputError, match=r"has msak, which no stage takes: .* takes x, mask"):
        pipeline.step({"x": batch["x"], "msak": batch["mask"]}, target)
    with pytest.raises(InputError, match="has 3 parts, and the model takes x, mask"):
        Pipeline(stages(), one_f_one_b(devices=4, microbatches=4), loss=squared).step(
            (batch["x"], batch["mask"], batch["mask"]), target
        )


@pytest.mark.parametrize("name", ["1f1b", "zbv", "chimera", "wpipe"])
def test_transfers_along_these_edges_have_one_order(name: str) -> None:
    """As NCCL needs it."""
    assert verify(one_wire(executable(over(program_of(name), GRAPH)))).is_valid
