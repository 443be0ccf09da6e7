"""Every asynchronous schedule is the reference with its versions, bit for bit."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.runtime.asynchrony import OPTIMIZERS, Asked, Case, cases, differences
from tests.runtime.models import MODELS, WIDTH, Faulty, adam, batches, is_same, linear, squared
from weft.errors import InputError, NonfiniteError, WeftError
from weft.ir.versions import resident_versions
from weft.notation import token
from weft.runtime import Pipeline, Reference, Scale, Staleness, training
from weft.runtime import reference as versions
from weft.runtime.lane.plan import Planner
from weft.runtime.lane.ring import Item, window
from weft.runtime.weights.staleness import scoped
from weft.runtime.weights.versions import Stash
from weft.schedules import one_f_one_b, pipedream_2bw, wpipe

ALL = [case for devices in (2, 3, 4) for case in cases(devices)]
SOME = [case for case in ALL if case.devices == 3]
FULLY = [*{(case.schedule, case.variant, case.devices): case for case in ALL}.values()]
ONE_EACH = [*{(case.schedule, case.variant): case for case in SOME}.values()]  # of every variant
MODES: list[tuple[bool, tuple[int, ...]]] = [(False, (0, 3)), (True, (2,)), (False, ())]


def of(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


class Combined(NamedTuple):
    """Whether a case is recomputed and where it drains, by index; a norm; an optimizer."""

    mode: int
    scope: str | None
    optimizer: str


def combined(case: Case) -> list[Combined]:
    """Three settings of one shape of each variant: an orthogonal array over two, three and four
    devices. Of its other shapes one, another on each number of devices.
    """
    scopes, optimizers = (None, *case.scopes, None), [*OPTIMIZERS]
    modes = range(len(MODES)) if case in FULLY else [(ALL.index(case) + case.devices) % 3]
    return [
        Combined(
            mode,
            scopes[(case.devices + mode) % 3],
            optimizers[(case.devices + 2 * mode) % 3],
        )
        for mode in modes
    ]


@of(ALL)
def test_every_variant_is_exact(case: Case) -> None:
    """With and without every norm, recomputation and drains; dropout; a short last microbatch."""
    for asked in combined(case):
        is_recomputed, drains = MODES[asked.mode]
        found = differences(
            case,
            optimizer=OPTIMIZERS[asked.optimizer],
            clip=None if asked.scope is None else 0.05,
            scope=asked.scope,
            is_recomputed=is_recomputed,
            drains=drains,
        )
        assert not found, asked


@of(ONE_EACH)
def test_any_two_settings_meet_in_every_variant(case: Case) -> None:
    """So that what goes wrong where two of them meet is seen, by three trainings of a shape."""
    alike = [c for c in ALL if (c.schedule, c.variant) == (case.schedule, case.variant)]
    tried = [asked for other in alike for asked in combined(other)]
    every = [*itertools.product(range(len(MODES)), (None, *case.scopes), OPTIMIZERS)]
    for one, other in itertools.combinations(range(3), 2):
        wanted = {(asked[one], asked[other]) for asked in every}
        assert {(asked[one], asked[other]) for asked in tried} == wanted


@of([case for case in SOME if case.backward is None])
def test_wrong_versions_differ(case: Case) -> None:
    assert differences(case, version=versions.synchronous())


@of([case for case in SOME if "global" in case.scopes or "group" in case.scopes])
def test_a_tied_weight_is_as_its_first_stage_has_it(case: Case) -> None:
    assert not differences(case, model="tied", drains=(1,))
    for scope in case.scopes:
        assert not differences(case, model="tied", clip=0.05, scope=scope)


@pytest.mark.parametrize("tie", [(0, 2), (0, 3), (1, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("scope", ["group", "stage"])
def test_ties_across_the_groups_of_wpipe_and_within_a_device(
    tie: tuple[int, int], scope: Any
) -> None:
    """A norm has a tied weight at its home alone: elsewhere an update does not wait for its sum."""
    program = wpipe(devices=2, microbatches=4)
    stages = linear(4)
    stages[tie[1]].weight = stages[tie[0]].weight
    copies = copy.deepcopy(stages)
    shared: dict[str, Any] = {"loss": squared, "optimizer": adam, "clip": 0.05}
    pipeline = Pipeline(stages, program, clip_by=scope, **shared)
    reference = Reference(copies, program, groups=scoped(program, scope), **shared)
    for batch, target in batches(8, 5):
        assert torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target))


@of(ONE_EACH)
def test_half_precision_stashes_what_is_computed_with(case: Case) -> None:
    assert not differences(case, asked=Asked(precision=torch.bfloat16), clip=0.05)


@of(SOME)
def test_a_synchronous_warm_up(case: Case) -> None:
    assert not differences(case, asked=Asked(warmup=3), drains=(4,))


@of(SOME)
def test_predicted_weights_and_tempered_rates(case: Case) -> None:
    assert not differences(case, asked=Asked(temper=4), updates=7)
    if case.variant == "fresh" and case.microbatches > 2:
        with pytest.raises(InputError, match="no one prediction"):
            differences(case, asked=Asked(predict=True))
    else:
        drains = () if case.backward else (3,)  # after which it would start anew
        assert not differences(case, asked=Asked(predict=True, warmup=2), drains=drains)


@of(ONE_EACH)
def test_a_scale_halves_after_gradients_that_overflow(case: Case) -> None:
    """Big enough that some updates are skipped, each group for itself; then it doubles again."""
    asked = Asked(precision=torch.float16, scale=Scale(2.0**22, interval=2))
    assert not differences(case, asked=asked, updates=14)
    assert not differences(case, asked=Asked(scale=256.0), clip=0.05)


def test_rates_of_each_stage_change_once_for_each_update() -> None:
    def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    for case in ONE_EACH:
        assert not differences(case, scheduler=halving, drains=(2,))


def test_running_statistics_are_those_of_the_forwards_in_order() -> None:
    for case in ONE_EACH:
        for is_recomputed in (False, True):
            if case.backward is None or not is_recomputed:
                assert not differences(case, model="normed", is_recomputed=is_recomputed)


@of(SOME)
def test_the_order_in_which_devices_get_on_does_not_matter(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One action at a time, of any device that can go on."""
    chosen = random.Random(0)

    def at_random(planner: Planner, item: Item) -> float:
        return chosen.random()

    monkeypatch.setattr(Planner, "_position", at_random)
    assert not differences(case, clip=0.05, drains=(2,))


# what is not finite


def test_an_update_with_a_loss_that_is_not_finite_is_skipped_everywhere() -> None:
    for case in ONE_EACH:
        assert not differences(case, model="broken", nonfinite="skip", clip=0.05)
        with pytest.raises(NonfiniteError, match="the loss of step 3 is nan, by microbatch"):
            differences(case, model="broken")


def test_a_step_that_fails_in_flight_ends_the_run() -> None:
    program = Case("pipedream-2bw", "", 2, 2, versions.pipedream_2bw()).program
    pipeline = Pipeline([nn.Linear(WIDTH, WIDTH), Faulty()], program, loss=squared, optimizer=adam)
    ((batch, target),) = batches(6, 1)
    pipeline.step(batch, target)
    with pytest.raises(WeftError, match="device 1 failed at 1F2@0: out of luck"):
        pipeline.step(batch, target)
    with pytest.raises(WeftError, match="begin anew"):
        pipeline.step(batch, target)


# resident copies


@of(ALL)
def test_no_more_copies_than_are_claimed(case: Case) -> None:
    """Counted where they are: distinct memory of any version of any weight."""
    program = case.program
    stages = MODELS["layers"].stages(program.stages)
    pipeline = Pipeline(stages, program, loss=squared, optimizer=adam)
    most = [0] * program.stages
    for batch, target in batches(3 * program.microbatches, 6):
        pipeline.step(batch, target)
        for (_, stage), groups in pipeline._parts.weights.groups.items():
            stores = [group.store for group in groups if isinstance(group.store, Stash)]
            slots = [slot for store in stores for slot in store._slots if slot is not None]
            for name, weight in stages[stage].named_parameters():
                memory = {slot[name].data_ptr() for slot in slots} | {weight.data_ptr()}
                most[stage] = max(most[stage], len(memory))
    assert most == resident_versions(program)
    assert pipeline.copies == dict(enumerate(most))


def test_a_version_in_use_is_never_overwritten() -> None:
    layer = nn.Linear(2, 2)
    stash = Stash(layer.named_parameters(), 1)
    stash.take(0)
    with pytest.raises(WeftError, match="version 0 is still in use"):
        stash.update(lambda: None)
    stash.give_back(0)
    stash.update(lambda: None)
    with pytest.raises(WeftError, match="version 0 is not kept"):
        stash.leaves(0)


# what a user sees


def test_a_drain_ends_with_as_many_updates_everywhere() -> None:
    for case in SOME:
        program = case.program
        pipeline = Pipeline(
            MODELS["layers"].stages(program.stages), program, loss=squared, optimizer=adam
        )
        for batch, target in batches(3 * program.microbatches, 3):
            pipeline.step(batch, target)
        flight = pipeline.drain()
        steps = {
            int(state["step"])
            for optimizer in pipeline.optimizers
            for state in optimizer.state.values()
        }
        assert steps == {flight.updates} == {3}


def test_the_timeline_of_a_flight_has_its_versions() -> None:
    case = Case("wpipe", "", 2, 2, versions.wpipe(2), 2)
    program = case.program
    pipeline = Pipeline(MODELS["layers"].stages(4), program, loss=squared, optimizer=adam)
    for batch, target in batches(6, 5):
        result = pipeline.step(batch, target)
    with pytest.raises(InputError, match=r"drain\(\) returns"):
        _ = result.timeline
    timeline = pipeline.drain().timeline
    assert timeline.program == window(pipeline.program, 0, 5)
    assert "0F8@3" in {token(timeline.program, row) for row in range(len(timeline.program))}
    assert (timeline.end >= timeline.start).all()
    assert (timeline.start > 0).all()
    assert pipeline.drain().updates == 0


def test_of_a_long_flight_the_first_updates_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "RECORDED", 2)
    program = Case("pipedream-2bw", "", 2, 2, versions.pipedream_2bw()).program
    pipeline = Pipeline(MODELS["layers"].stages(2), program, loss=squared, optimizer=adam)
    for _ in range(2):
        for batch, target in batches(6, 5):
            pipeline.step(batch, target)
        landed = pipeline.drain()
        assert landed.updates == 5
        assert landed.timeline.program == window(pipeline.program, 0, 2)
        assert (landed.timeline.end >= landed.timeline.start).all()
        assert (landed.timeline.start > 0).all()


def test_evaluation_drains_and_changes_nothing() -> None:
    for case in SOME:
        program = case.program
        make, data, loss = MODELS["layers"]
        stages = make(program.stages)
        asked = Asked(predict=case.variant != "fresh")
        pipeline = Pipeline(stages, program, loss=loss, optimizer=adam, **asked.settings)
        (batch, target), *others = data(3 * program.microbatches, 3)
        for one in others:
            pipeline.step(*one)
        pipeline.drain()
        before = copy.deepcopy([stage.state_dict() for stage in stages])
        found = pipeline.evaluate(batch, target).loss
        value = batch
        with torch.no_grad():
            for stage in stages:
                value = stage.eval()(value)
        parts = (data.chunk(program.microbatches) for data in (value, target))
        each = [loss(*part) / program.microbatches for part in zip(*parts, strict=True)]
        wanted = torch.stack(each).sum()
        torch.testing.assert_close(found, wanted)
        for stage, known in zip(stages, before, strict=True):
            assert all(is_same(value, known[name]) for name, value in stage.state_dict().items())
            stage.train()
        pipeline.step(batch, target)


def test_weights_that_are_put_elsewhere_between_steps_are_computed_with() -> None:
    """As `vector_to_parameters` does."""
    program = pipedream_2bw(devices=2, microbatches=2, updates=6)
    found = []
    for is_elsewhere in (False, True):
        pipeline = Pipeline(MODELS["layers"].stages(2), program, loss=squared, optimizer=adam)
        for batch, target in batches(8, 4):
            pipeline.step(batch, target)
            pipeline.drain()
            for weight in (w for m in pipeline.modules.values() for w in m.parameters()):
                if is_elsewhere:
                    weight.data = weight.data / 2
                else:
                    weight.data.div_(2)
        found.append([w for m in pipeline.modules.values() for w in m.parameters()])
    assert all(map(torch.equal, *found))


# what is refused


def test_norms_that_would_stall_are_refused() -> None:
    for schedule, scope, remedy in (
        ("wpipe", "global", "Clip by group"),
        ("pipedream", "global", "Clip by group"),
        ("naive-async", "global", "Clip by group"),
    ):
        case = next(c for c in SOME if c.schedule == schedule and not c.variant)
        with pytest.raises(
            InputError, match=rf"wait in every step for a norm by {scope}.*{remedy}"
        ):
            differences(case, clip=1.0, scope=scope)
    with pytest.raises(InputError, match="'layer' is not known; use 'global'"):
        differences(SOME[0], clip=1.0, scope="layer")


def test_ties_that_a_schedule_cannot_have_are_refused() -> None:
    case = next(case for case in SOME if case.schedule == "pipedream")
    with pytest.raises(InputError, match=r"tied to .* 2 and 0 updates stale.*vertical-sync"):
        differences(case, model="tied")


def test_what_asynchronous_training_cannot_do_is_refused() -> None:
    two_bw = Case("pipedream-2bw", "", 2, 2, versions.pipedream_2bw()).program
    stages = MODELS["layers"].stages(2)
    with pytest.raises(InputError, match="updates by itself and needs an optimizer"):
        Pipeline(stages, two_bw, loss=squared)
    short = pipedream_2bw(devices=2, microbatches=2, updates=2)
    with pytest.raises(InputError, match="too short to repeat"):
        Pipeline(stages, short, loss=squared)
    synchronous = one_f_one_b(devices=2, microbatches=2)
    with pytest.raises(InputError, match="its weights are never stale"):
        Pipeline(stages, synchronous, loss=squared, staleness=Staleness())
    with pytest.raises(InputError, match="nothing is in flight"):
        Pipeline(stages, synchronous, loss=squared).drain()
    with pytest.raises(InputError, match="floating point"):
        Pipeline(stages, synchronous, loss=squared, precision=torch.int8)
    naive = Case("naive-async", "", 2, 1, versions.pipedream(2)).program
    compiled: list[Any] = [torch.compile(stage) for stage in stages]
    with pytest.raises(InputError, match=r"stashes nothing.*compiled"):
        Pipeline(compiled, naive, loss=squared, optimizer=adam)
