"""Stages of dense layers, expert layers and what stands around them, cut into segments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, Data
from tests.runtime.ranks import run as run_ranks
from weft.errors import InputError
from weft.ir.kinds import Layer
from weft.ir.program import Program
from weft.lower import experts, offload
from weft.models import gpt, moe
from weft.runtime import layers_of, split
from weft.runtime.stage.locks import OPEN
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.segments import layers_of_numbers, segments_of
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.schedules import dualpipev, kimi_k2, one_f_one_b
from weft.simulate import simulate

X, DENSE, PLAIN = Layer.EXPERTS, Layer.DENSE, Layer.PLAIN
VOCABULARY, CONTEXT = 13, 5


def model(load: str = "learned") -> nn.Sequential:
    """Two dense layers, and five of experts."""
    torch.manual_seed(0)
    return moe(
        VOCABULARY,
        layers=7,
        hidden=8,
        heads=2,
        context=CONTEXT,
        experts=4,
        top=2,
        dense=2,
        dropout=0.1,
        load=load,
    )


def tokens(rows: int, steps: int) -> Data:
    generator = torch.Generator().manual_seed(4)
    shape = (2, steps, rows, CONTEXT)
    data, targets = torch.randint(VOCABULARY, shape, generator=generator)
    return [*zip(data, targets, strict=True)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def adamw(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for _, weight in named], lr=1e-2)


def programs() -> dict[str, Program]:
    k2 = kimi_k2(devices=2, microbatches=4, stages_per_device=2)
    ends = kimi_k2(devices=2, microbatches=4, stages_per_device=2, variant="paired-ends")
    return {
        "kimi-k2": k2,
        "paired-ends": ends,
        "dualpipev": dualpipev(devices=2, microbatches=4),
        "1f1b": one_f_one_b(devices=4, microbatches=4),
    }


# How many of the nine modules each stage has: an embedding alone, or a head with the last layers.
CUTS = {"kimi-k2": [1, 4, 2, 2], "paired-ends": [2, 3, 1, 3], "dualpipev": [3, 1, 4, 1]}


@pytest.mark.parametrize("name", programs())
def test_the_program_in_segments_is_the_reference(name: str) -> None:
    stages = split(model(), stages=4, layers=CUTS.get(name, [4, 2, 1, 2]))
    program = experts(programs()[name], layers=layers_of(stages))
    settings = {"loss": loss, "optimizer": adamw, "clip": 0.5}
    assert differences(stages, program, tokens(7, 2), **settings) == []


def test_segments_whose_state_leaves_are_exact() -> None:
    stages = split(model("skewed"), stages=4, layers=CUTS["kimi-k2"])
    program = offload(simulate(experts(programs()["kimi-k2"], layers=layers_of(stages))))
    assert differences(stages, program, tokens(8, 2), loss=loss, optimizer=adamw) == []


def test_layers_are_read_from_the_modules() -> None:
    stages = split(model(), stages=4, layers=[1, 3, 4, 1])
    assert layers_of(stages) == [(PLAIN,), (DENSE, DENSE, X), (X, X, X, X), (PLAIN,)]
    whole = [(DENSE, DENSE, X, X, X, X, X, PLAIN)]
    assert layers_of([model()]) == whole
    assert layers_of(split(gpt(5, layers=2, hidden=8, heads=2, context=4), stages=2)) == [
        (PLAIN,),
        (PLAIN,),
    ]


def run(modules: Sequence[nn.Module], data: Tensor) -> tuple[Tensor, Tensor]:
    value: Any = data
    torch.manual_seed(1)
    for module in modules:
        value = module(value)
    value.square().mean().backward()
    assert data.grad is not None
    return value, data.grad


def test_segments_in_a_row_are_the_block() -> None:
    block = model()[4]
    twin, data = copy.deepcopy(block), torch.randn(2, CONTEXT, 8)
    segments = segments_of(twin.eval(), [X])
    mine = run(segments, data.clone().requires_grad_())
    theirs = run([block.eval()], data.clone().requires_grad_())
    assert all(map(torch.equal, mine, theirs))
    for one, other in zip(twin.parameters(), block.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_weights_keep_the_names_of_the_model() -> None:
    whole = model()
    (stage,) = split(whole, stages=1)
    segments = segments_of(stage, layers_of([stage])[0])
    assert len(segments) == 2 * 2 + 5 * 4 + 1
    named = [pair for segment in segments for pair in segment.named_parameters()]
    assert dict(named) == dict(whole.named_parameters())


class Seeing(nn.Module):
    """Remembers where its input was."""

    def __init__(self, *, keeps_inputs: bool) -> None:
        super().__init__()
        self.keeps_inputs, self.seen = keeps_inputs, list[int]()

    def forward(self, value: Tensor) -> Tensor:
        self.seen.append(value.data_ptr())
        return value


@pytest.mark.parametrize("keeps_inputs", [False, True], ids=["copied", "kept"])
def test_inputs_are_copied_unless_a_segment_keeps_them(keeps_inputs: bool) -> None:
    parts = [Seeing(keeps_inputs=keeps_inputs) for _ in range(4)]
    stages = [Stage(one, Draw(), Role(index=0)) for one in segments_of(nn.Sequential(*parts), 1)]
    value = Value.of(torch.randn(2, WIDTH), "")
    for stage in stages:
        stage.begin(OPEN, None)
        value = stage.forward(0, [value])
    places = {place for part in parts for place in part.seen}
    assert len(places) == (1 if keeps_inputs else 4)


def train_in_two_ranks() -> list[str]:
    """In each rank, where dispatch and combine run on a thread of their own."""
    stages = split(model(), stages=4, layers=CUTS["kimi-k2"])
    program = experts(programs()["kimi-k2"], layers=layers_of(stages))
    return differences(stages, program, tokens(7, 2), loss=loss, optimizer=adamw)


def test_segments_on_two_streams_are_exact() -> None:
    assert run_ranks(2, train_in_two_ranks) == [[], []]


class Counting(nn.Linear):
    """Keeps a mean of what it has seen, as routers do that even out their load."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: Tensor

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean += 0.1 * (value.mean(0) - self.mean)
        return super().forward(value - self.mean)


def train_what_changes_its_buffers() -> list[str]:
    torch.manual_seed(0)
    parts = (Counting, nn.Identity, Counting, nn.Identity)
    program = experts(programs()["kimi-k2"])
    stages = [nn.Sequential(*(make() for make in parts)) for _ in range(program.stages)]
    data = [(torch.randn(8, WIDTH), torch.randn(8, WIDTH)) for _ in range(2)]
    return differences(stages, program, data, optimizer=adamw)


def test_segments_change_their_buffers_in_the_order_of_microbatches() -> None:
    """Each has buffers of its own, whatever runs beside it."""
    assert train_what_changes_its_buffers() == []
    assert run_ranks(2, train_what_changes_its_buffers) == [[], []]


# refusals


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    @property
    def segments(self) -> list[nn.Module]:
        return [*self.parts]


def test_another_number_of_segments_is_refused() -> None:
    with pytest.raises(InputError, match="Three has 3 segments; give attention, dispatch, experts"):
        layers_of([nn.Sequential(Three())])


def test_layers_that_the_program_cuts_otherwise_are_refused() -> None:
    (stage,) = split(model()[1:4], stages=1)
    with pytest.raises(InputError, match=r"dense, dense, experts; and .* into experts, experts\."):
        segments_of(stage, 2)


def test_parts_that_are_no_layer_are_refused() -> None:
    assert layers_of_numbers([0, 2, 4, 5, 6, 7, 10]) == [DENSE, X, PLAIN]
    with pytest.raises(InputError, match="layer 1 of a stage is cut into attention and combine"):
        layers_of_numbers([0, 2, 4, 7])


def test_hooks_of_a_layer_are_refused() -> None:
    whole = model()
    whole[3].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="ExpertBlock has hooks"):
        layers_of([whole])
