"""What is stored in FP8 is rounded as the reference says; what is recomputed is the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import weft
from tests.runtime.models import WIDTH
from tests.runtime.ranks import run
from tests.runtime.test_offloading import Trained, program_of
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference
from weft.runtime.reference.storing import rounded_in_tiles
from weft.runtime.stage.storage.blocks import HostBlocks
from weft.runtime.stage.storage.marks import is_rounded
from weft.runtime.stage.storage.tiles import Tiles
from weft.schedules import one_f_one_b

# tiles


def numbers() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(7, 300, generator=generator)
    strange = drawn.clone()
    strange[0, 3], strange[1, 200], strange[2, 299] = torch.inf, -torch.inf, torch.nan
    spread = drawn * torch.logspace(-44, 38, 300)
    return {
        "ordinary": drawn,
        "not finite": strange,
        "spread": spread,
        "bfloat16": spread.bfloat16(),
        "float16": drawn.half() * 1e4,
        "zero": torch.zeros(2, 130),
        "turned": drawn.t(),
        "cut": drawn[:, ::2],
        "three dimensions": drawn.view(7, 3, 100).transpose(0, 1),
    }


@pytest.mark.parametrize("name", numbers())
def test_tiles_come_back_as_the_reference_rounds_them(name: str) -> None:
    value = numbers()[name]
    found, expected = Tiles(value).restored(), rounded_in_tiles(value)
    assert found.stride() == expected.stride() == torch.empty_like(value).stride()
    assert found.dtype == expected.dtype == value.dtype
    bits = {2: torch.int16, 4: torch.int32}[value.dtype.itemsize]
    is_nan = found.isnan()
    assert torch.equal(is_nan, ~value.isfinite())
    assert torch.equal(found.view(bits)[~is_nan], expected.view(bits)[~is_nan])


def test_every_element_is_rounded_to_the_nearest_of_all_codes() -> None:
    """By trying all of them, with the scale that the tile's largest magnitude asks for."""
    tile = numbers()["ordinary"][:1, :128]
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    scale = 2.0 ** (torch.frexp(tile.abs().max())[1].item() - 1) / 2**7
    every = codes[codes.isfinite()] * scale
    error = (tile.double().unsqueeze(-1) - every).abs().amin(-1)
    assert torch.equal((Tiles(tile).restored().double() - tile.double()).abs(), error)


def test_tiles_take_a_byte_for_each_element_and_a_scale_for_each_tile() -> None:
    value = numbers()["ordinary"]
    assert sum(tensor.nbytes for tensor in Tiles(value).tensors) == 7 * (300 + 3 * 4)
    assert not is_rounded(torch.zeros(5, 1))  # whose scales would take as much
    assert not is_rounded(torch.zeros(5, 300, dtype=torch.int64))


# host blocks


def test_blocks_are_used_again_by_size() -> None:
    blocks = HostBlocks()
    first = blocks.take(1000, is_pinned=False, stream=None)
    second = blocks.take(1000, is_pinned=False, stream=None)
    assert first.content.data_ptr() != second.content.data_ptr()
    blocks.give_back(first)
    again = blocks.take(990, is_pinned=False, stream=None)
    assert again.content.data_ptr() == first.content.data_ptr()
    made = blocks.made
    blocks.take(5_000_000, is_pinned=False, stream=None)
    assert 5_000_000 <= blocks.made - made <= 5_000_000 * 9 / 8


# marked modules


class Gate(nn.Module):
    """An activation function that draws."""

    def forward(self, value: Tensor) -> Tensor:
        return functional.dropout(value * torch.sigmoid(value), 0.2)


class Block(nn.Module):
    """A feed-forward layer of which some pieces are marked, and some draw after them."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self.norm, self.gate = nn.BatchNorm1d(WIDTH), Gate()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        if "recomputed" in marks:
            weft.recomputed(self.norm)
            weft.recomputed(self.gate)
        if "fp8" in marks:
            weft.stored_in_fp8(self.up)
            weft.stored_in_fp8(self.down)
        if "both" in marks:
            weft.stored_in_fp8(weft.recomputed(self.gate))

    def forward(self, value: Tensor) -> Tensor:
        inner = self.gate(self.up(self.norm(value)))
        return value + functional.dropout(self.down(inner), 0.1)


def blocks(count: int, marks: str) -> list[nn.Module]:
    torch.manual_seed(2)
    return [Block(marks) for _ in range(count)]


def marked(program: Program, marks: str, reference: str, **settings: Any) -> Trained:
    """Trained by the reference with some marks, to be compared with others."""
    case = Trained(program, blocks(program.stages, reference), **settings)
    case._stages = blocks(program.stages, marks)
    return case


PROGRAMS = {
    "1f1b": lambda: one_f_one_b(devices=2, microbatches=4),
    "zb-h1": lambda: program_of("zb-h1"),
    "recompute": lambda: recompute(one_f_one_b(devices=3, microbatches=4)),
    "pipedream": lambda: program_of("pipedream"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_fp8_is_what_a_reference_says_that_rounds_alike(name: str) -> None:
    program = PROGRAMS[name]()
    case = marked(program, "fp8 both", "fp8 both", steps=3)
    assert case.differences("none") == []
    assert case.differences("all") == []


def test_and_not_what_one_says_that_does_not_round() -> None:
    program = one_f_one_b(devices=1, microbatches=2)
    for marks in ("fp8", "both"):
        assert marked(program, marks, marks).differences("none") == []
        assert marked(program, marks, "").differences("none") != []


def test_fp8_where_a_backward_finds_newer_weights() -> None:
    case = marked(program_of("naive-async"), "fp8", "fp8", steps=3)
    assert case.differences("all") == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_recomputed_is_what_plain_modules_compute(name: str) -> None:
    case = marked(PROGRAMS[name](), "recomputed", "", steps=3)
    assert case.differences("none") == []
    assert case.differences("all") == []


def test_marks_keep_less() -> None:
    program, moved = one_f_one_b(devices=2, microbatches=4), {}
    for marks in ("", "recomputed", "fp8", "recomputed fp8 both"):
        case = marked(program, marks, marks)
        assert case.differences("all") == []
        moved[marks] = case.moved.away
    assert moved["recomputed fp8 both"] < moved["recomputed"] < moved[""]
    assert moved["recomputed fp8 both"] < moved["fp8"] < moved[""]


class Plain(nn.Module):
    """A feed-forward layer as people write it."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.GELU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        if "recomputed" in marks:
            weft.recomputed(self.norm)
            weft.recomputed(self.act)

    def forward(self, value: Tensor) -> Tensor:
        inner: Tensor = self.act(self.up(self.norm(value)))
        out: Tensor = value + self.down(inner)
        return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_nobody_keeps_what_a_recomputed_module_returns(name: str) -> None:
    moved = {}
    for marks in ("", "recomputed"):
        torch.manual_seed(2)
        program = PROGRAMS[name]()
        case = Trained(program, [Plain("") for _ in range(program.stages)], steps=3)
        torch.manual_seed(2)
        case._stages = [Plain(marks) for _ in range(program.stages)]
        assert case.differences("all") == []
        moved[marks] = case.moved.away
    if name != "recompute":  # which keeps the inputs of stages alone
        # of x, norm(x), up, act(up): 1 + 1 + 4 + 4 widths
        assert moved["recomputed"] < 0.55 * moved[""]


def train_marked() -> list[str]:
    case = marked(program_of("zb-h1"), "recomputed fp8 both", "recomputed fp8 both")
    return case.differences("all")


def test_marks_hold_on_threads() -> None:
    assert run(2, train_marked) == [[], []]


def test_marked_modules_can_be_trained_again_and_copied() -> None:
    program = one_f_one_b(devices=1, microbatches=2)
    case = marked(program, "recomputed fp8", "recomputed fp8")
    with Pipeline(case._stages, program, **case._settings):
        pass
    assert case.differences("none") == []


def test_what_is_inside_of_a_recomputed_module_is_not_stored() -> None:
    for make in (Pipeline, Reference):
        whole = weft.recomputed(nn.Sequential(weft.stored_in_fp8(nn.Linear(WIDTH, WIDTH))))
        with pytest.raises(InputError, match="mark one of the two"):
            make([whole], one_f_one_b(devices=1, microbatches=2), loss=functional.mse_loss)


def test_marks_in_what_is_compiled_are_refused() -> None:
    compiled = torch.compile(nn.Sequential(weft.recomputed(nn.GELU())), backend="eager")
    with pytest.raises(InputError, match="is compiled"):
        Pipeline([compiled], one_f_one_b(devices=1, microbatches=2), loss=functional.mse_loss)


def test_marked_modules_are_not_captured() -> None:
    program = one_f_one_b(devices=1, microbatches=2)
    with pytest.raises(InputError, match="norm of stage 0 is marked"):
        Pipeline(blocks(1, "recomputed"), program, loss=functional.mse_loss, graphs=True)
