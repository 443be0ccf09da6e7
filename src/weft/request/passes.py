"""Passes: what is added to a program before it is timed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypedDict

from weft.cost import Layout
from weft.errors import InputError
from weft.explain import Relief
from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.lower import Amount, check_amount, experts, offload, overlapping, recompute, updates
from weft.lower.experts import MOST_LAYERS
from weft.request.costs import Costs
from weft.request.values import AMOUNT, COUNT, TEXT, Bundle, Whole, given
from weft.simulate import simulate
from weft.verify import check

ALL, AUTO, NONE, SELECTIVE = "all", "auto", "none", "selective"
AMOUNTS: dict[str, Amount] = {ALL: "all", AUTO: "auto"}
STAGE = "stage:"  # before the number of one
MOST_MADE = 4_000_000  # actions that a pass may make


@dataclass(frozen=True, slots=True)
class Passes(Bundle):
    """What is added to the program before it is timed; None where nothing is."""

    recompute: str | None = given(TEXT)
    offload: str | None = given(TEXT)
    copy: float | None = given(AMOUNT)
    experts: int | None = given(Whole(most=MOST_LAYERS))
    steps: int | None = given(COUNT)

    @classmethod
    def of(cls, relief: Relief) -> Passes:
        """What relieves the memory of every device."""
        return cls(
            recompute=ALL if relief.is_recomputing else None,
            offload=AUTO if relief.is_offloading else None,
        )

    def __str__(self) -> str:
        """As the command line spells them."""
        return " ".join(f"--{name} {value}" for name, value in self.asked.items())

    @property
    def keeps_order(self) -> bool:
        """Whether a program repeats with them as it did: what waits on the host delays nothing."""
        return self.experts is None and self.steps is None

    def for_streams(self, program: Program) -> Passes:
        """The same with every stream in use: pairs cut into segments, and some offloaded."""
        actions = program.actions
        has_pairs = bool(actions.joined.any()) and not bool((actions.segment >= 0).any())
        cut = self.experts or (1 if has_pairs else None)
        return replace(self, experts=cut, offload=self.offload or AUTO)

    def priced(self, costs: Costs) -> Costs:
        """What things cost with them: with a link to the host, and with less that is saved."""
        costs = costs.with_copies(self.copy)
        return costs.selective() if self.recompute == SELECTIVE else costs

    def check(self, program: Program) -> None:
        """Refuse stages that a program does not have, and amounts that are none."""
        if self.recompute not in (None, SELECTIVE):
            _stages(str(self.recompute), program, "--recompute")
        if self.offload not in (None, NONE):
            _offloaded(str(self.offload), program)

    def recomputed(self, program: Program) -> Program:
        """The program with what is asked for of its forwards."""
        if self.recompute in (None, SELECTIVE):
            return program
        return recompute(program, stages=_stages(str(self.recompute), program, "--recompute"))

    def lowered(self, program: Program, costs: Costs) -> Program:
        """The program in full with all that is asked for; its order is proved before offloading."""
        program = self.recomputed(program)
        if self.experts is not None:
            _check_made(len(Part) * self.experts * len(program), f"--experts {self.experts}")
            program = experts(program, layers=self.experts)
        if self.steps is not None:
            program = _repeated(program, self.steps, costs.layout)
        if self.offload is not None and self.offload != NONE:
            check(program)
            cost, asked = costs.of(program), _offloaded(self.offload, program)
            program = offload(simulate(overlapping(program, cost), cost), **asked)
        return program


def _repeated(program: Program, steps: int, layout: Layout) -> Program:
    """A step with its updates, and with sums where a layout has copies, as often as asked for."""
    if bool((program.actions.kind == Kind.UPDATE).any()):
        raise InputError(f"{program.name} places its updates itself; --updates has its steps")
    _check_made(len(program) * steps, f"--steps {steps}")
    has_copies = layout.copies > 1
    whole = updates(program, is_sharded=has_copies and layout.is_sharded, is_replicated=has_copies)
    return whole.unrolled(steps)


def _check_made(actions: int, option: str) -> None:
    """Refuse what would take more memory than most machines have, before it is taken."""
    if actions > MOST_MADE:
        raise InputError(
            f"{option} makes {actions:,} actions or more; Weft takes {MOST_MADE:,}. Ask for less"
        )


class Offloaded(TypedDict, total=False):
    """How much of the state of which stages goes to the host."""

    amount: Amount
    stages: list[int]


def _offloaded(text: str, program: Program) -> Offloaded:
    """What `auto`, `all`, a fraction like 0.5, `stage:1` or stages like `0,2,4` ask for."""
    if text in AMOUNTS:
        return {"amount": AMOUNTS[text]}
    if "." in text:
        with suppress(ValueError):
            amount = float(text)
            check_amount(amount)
            return {"amount": amount}
    if text.isdecimal():
        raise InputError(_either_way(int(text)))
    try:
        stages = [int(word) for word in text.removeprefix(STAGE).split(",")]
    except ValueError:
        raise InputError(
            f"--offload {text}: give `auto`, `none`, a fraction like 0.5, `all`, a stage like"
            f" {STAGE}1, or stages like 0,2,4"
        ) from None
    _check_stages(stages, text, program, "--offload")
    return {"stages": stages}


def _either_way(number: int) -> str:
    """Why a whole number alone is refused: it may mean a stage, or a fraction."""
    fractions = {0: "`0.0` or `none` offloads nothing, ", 1: "`1.0` or `all` everything, "}
    return (
        f"--offload {number} may mean a stage or a fraction: {fractions.get(number, '')}"
        f"`{STAGE}{number}` what there is time for of stage {number}"
    )


def _stages(text: str, program: Program, flag: str) -> list[int] | None:
    """Stages from `all`, `0` or `0,2,4`."""
    if text == ALL:
        return None
    try:
        stages = [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} {text}: `all`, `selective`, or stages like 0,2,4") from None
    _check_stages(stages, text, program, flag)
    return stages


def _check_stages(stages: list[int], text: str, program: Program, flag: str) -> None:
    if any(not 0 <= stage < program.stages for stage in stages):
        raise InputError(f"{flag} {text}: stages are numbered 0 to {program.stages - 1}")
