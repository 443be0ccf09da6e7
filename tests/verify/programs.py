"""Small programs written out by hand, each a page that one can check with a pencil."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from weft.ir.actions import Action, Pair
from weft.ir.graph import Backward, Graph
from weft.ir.kinds import Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.lower import split_late
from weft.notation.tokens import read_token


def actions(words: str, *, version: int | None = None) -> list[Action]:
    """Actions from words: "0F0 0F1 0B0"; "2F0..3" spans four microbatches."""
    return [_action(word, version) for word in words.split()]


def repeating(
    *lanes: str, microbatches: int = 1, placement: Placement | None = None, **more: object
) -> Program:
    """A program that repeats: "0F0@0 0B0@0 0U@0 [0F1@1 0B1@1 0U@1]" has a prologue and a body."""
    parts = [[_actions_of(part) for part in lane.replace("]", "[").split("[")] for lane in lanes]
    body = [action for lane in parts for action in lane[1]]
    updates = sum(a.kind is Kind.UPDATE and a.stage == body[-1].stage for a in body) if body else 1
    period = Period(
        prologue=tuple(len(lane[0]) for lane in parts),
        body=tuple(len(lane[1]) for lane in parts),
        microbatches=updates * microbatches,
        versions=updates,
    )
    return Program.build(
        "repeating",
        placement or Placement.straight(len(lanes)),
        [[action for part in lane for action in part] for lane in parts],
        microbatches=microbatches,
        period=period,
        **more,  # type: ignore[arg-type]
    )


def _actions_of(words: str) -> list[Action]:
    found = []
    for word in words.split():
        name, _, version = word.partition("@")
        if name.endswith("U"):
            found.append(Action(int(name[:-1]), Kind.UPDATE, version=int(version)))
        else:
            found.append(_action(name, int(version)))
    return found


def _action(word: str, version: int | None) -> Action:
    at = next(position for position, letter in enumerate(word) if letter in "FBIWR")
    first, _, last = word[at + 1 :].partition("..")
    span = int(last) - int(first) + 1 if last else 1
    return Action(int(word[:at]), Kind[word[at]], int(first), span, version)


def program(
    name: str, lanes: Iterable[str | Iterable[Action | Pair]], microbatches: int, **more: object
) -> Program:
    """A program with one stage on each device, unless a placement says otherwise."""
    contents = [actions(lane) if isinstance(lane, str) else list(lane) for lane in lanes]
    more.setdefault("placement", Placement.straight(len(contents)))
    return Program.build(name, lanes=contents, microbatches=microbatches, **more)  # type: ignore[arg-type]


def gpipe(devices: int, microbatches: int) -> Program:
    return program(
        "gpipe",
        [
            [Action(d, kind, m) for kind in (Kind.F, Kind.B) for m in range(microbatches)]
            for d in range(devices)
        ],
        microbatches,
    )


def one_f_one_b(devices: int, microbatches: int) -> Program:
    lanes = [
        _alternating(
            [Action(d, Kind.F, m) for m in range(microbatches)],
            [Action(d, Kind.B, m) for m in range(microbatches)],
            ahead=devices - 1 - d,
        )
        for d in range(devices)
    ]
    return program("1f1b", lanes, microbatches)


def zb_h1(devices: int, microbatches: int) -> Program:
    return split_late(one_f_one_b(devices, microbatches), late=range(devices)).renamed("zb-h1")


def interleaved(devices: int, microbatches: int, stages_per_device: int) -> Program:
    """Megatron's order, in groups of as many microbatches as there are devices."""
    lanes = [
        _alternating(*_tables(d, devices, microbatches, stages_per_device), ahead=ahead)
        for d in range(devices)
        for ahead in [2 * (devices - 1 - d) + (stages_per_device - 1) * devices]
    ]
    placement = Placement.looped(devices, stages_per_device)
    return program("interleaved", lanes, microbatches, placement=placement)


def paired_one_f_one_b() -> Program:
    """Every F waits for the B beside it: device 1 wants F1 for B0, device 0 B0 for F1."""
    return program("pairs", [_paired_lane(0), _paired_lane(1)], 2)


def interleaved_pairs(*, extra: int) -> Program:
    """Interleaved on 4 devices, each F and B of the steady state one slot, more Fs before it."""
    devices, microbatches, stages_per_device = 4, 8, 2
    lanes: list[list[Action | Pair]] = []
    for d in range(devices):
        forwards, backwards = _tables(d, devices, microbatches, stages_per_device)
        ahead = 2 * (devices - 1 - d) + (stages_per_device - 1) * devices + extra
        paired = map(Pair, forwards[ahead:], backwards)
        lanes.append([*forwards[:ahead], *paired, *backwards[len(forwards) - ahead :]])
    placement = Placement.looped(devices, stages_per_device)
    return program("pairs", lanes, microbatches, placement=placement)


def chimera() -> Program:
    """Two devices, two pipes, a microbatch each."""
    return program(
        "chimera",
        ["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"],
        2,
        placement=Placement(((0, 1), (1, 0))),
        pipe_of=(0, 1),
    )


def two_tower(microbatches: int, *, backward: Backward = Backward.FULL) -> Program:
    """Towers 0 and 1, one of them perhaps frozen, and stage 2 that joins them; 1F1B."""
    graph = Graph.two_tower(1)
    frozen = replace(graph.stages[0], backward=backward)
    graph = Graph((frozen, *graph.stages[1:]), graph.edges, graph.name)
    plain = [
        _alternating(
            [Action(stage, Kind.F, m) for m in range(microbatches)],
            [Action(stage, Kind.B, m) for m in range(microbatches)],
            ahead=graph.heights[stage],
        )
        for stage in range(3)
    ]
    lanes = [[a for a in plain[0] if backward is not Backward.NONE or a.kind is Kind.F], *plain[1:]]
    return program("two-tower", lanes, microbatches, graph=graph)


def contrastive(tower: str) -> Program:
    """Two towers in this order; the join sees the whole batch of 2 at once."""
    graph = Graph.two_tower(1)
    join = replace(graph.stages[2], is_whole_batch=True)
    graph = Graph((*graph.stages[:2], join), graph.edges)
    lanes = [" ".join(f"{stage}{word}" for word in tower.split()) for stage in (0, 1)]
    return program("contrastive", [*lanes, "2F0..1 2B0..1"], 2, graph=graph)


def fan_out() -> Program:
    """Stage 0 feeds 1 and 2, and both feed 3; every stage on its own device."""
    lanes = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2F1 2B0 2B1", "3F0 3B0 3F1 3B1"]
    return program("fan-out", lanes, 2, graph=Graph.inception(2))


def two_bw(updates: int) -> Program:
    """PipeDream-2BW: D=2, N=2; microbatch k uses version max(0, k // 2 - 1)."""
    lanes = [_two_bw_lane(device, updates) for device in range(2)]
    return program("2bw", lanes, 2)


def periodic_two_bw() -> Program:
    """The same, of any length: the first update, one that repeats, the last."""
    flat = two_bw(3)
    return flat.with_lanes(flat.contents(), period=Period((6, 5), (5, 5), microbatches=2))


def offloading() -> Program:
    """One device, two microbatches; the first goes to the host and comes back."""
    first = {"stage": 0, "microbatch": 0}
    return Program.build(
        "offloading",
        Placement.straight(1),
        {
            Lane(0): actions("0F0 0F1 0B1 0B0"),
            Lane(0, Stream.OFFLOAD): [Action(kind=Kind.OFFLOAD, **first)],
            Lane(0, Stream.ONLOAD): [Action(kind=Kind.ONLOAD, **first)],
        },
        microbatches=2,
    )


def offloading_in_pieces() -> Program:
    """One device, two microbatches, stages of two layers; both of the first go to the host."""
    lanes = {
        Lane(0): "0F0/0 0F0/1 0F1/0 0F1/1 0B1/1 0B1/0 0B0/1 0B0/0",
        Lane(0, Stream.OFFLOAD): "off:0F0/0 off:0F0/1",
        Lane(0, Stream.ONLOAD): "on:0F0/1 on:0F0/0",
    }
    words = {lane: [f"{word}.experts" for word in text.split()] for lane, text in lanes.items()}
    rows = {lane: [read_token(word, {}) for word in found] for lane, found in words.items()}
    return Program.build(
        "offloading in pieces",
        Placement.straight(1),
        {
            lane: [
                Action(stage, Kind(kind), number, segment=segment)
                for stage, kind, number, *_, segment in found
            ]
            for lane, found in rows.items()
        },
        microbatches=2,
    )


def _alternating(
    forwards: list[Action], backwards: list[Action], *, ahead: int
) -> Iterator[Action]:
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[max(0, len(forwards) - ahead) :]


def _tables(
    device: int, devices: int, microbatches: int, stages_per_device: int
) -> tuple[list[Action], list[Action]]:
    order = [
        (turn, group + m)
        for group in range(0, microbatches, devices)
        for turn in range(stages_per_device)
        for m in range(devices)
    ]
    last = stages_per_device - 1
    return (
        [Action(turn * devices + device, Kind.F, m) for turn, m in order],
        [Action((last - turn) * devices + device, Kind.B, m) for turn, m in order],
    )


def _paired_lane(device: int) -> list[Action | Pair]:
    first, second, back, last = actions(f"{device}F0 {device}F1 {device}B0 {device}B1")
    return [first, Pair(second, back), last]


def _two_bw_lane(device: int, updates: int) -> Iterator[Action]:
    plain = _alternating(
        [Action(device, Kind.F, m) for m in range(2 * updates)],
        [Action(device, Kind.B, m) for m in range(2 * updates)],
        ahead=1 - device,
    )
    for action in plain:
        step, place = divmod(action.microbatch or 0, 2)
        yield action._replace(version=max(0, step - 1))
        if action.kind is Kind.B and place == 1:
            yield Action(device, Kind.UPDATE, version=step)


def first_stage_waiting() -> Program:
    """Stages 0 and 2 on device 1: it begins the next step before it gives device 0 a gradient."""
    return repeating(
        "1F0@0 1B0@0 1U@0 1F1@1 1B1@1 1U@1 1F2@2 1B2@2 1U@2 [1F3@3 1B3@3 1U@3]",
        "0F0@0 2F0@0 0F1@0 2B0@0 2U@0 0B0@0 0U@0 2F1@1 0F2@1 2B1@1 2U@1 0B1@0 0U@1 2F2@2"
        " [0F3@2 2B2@2 2U@2 0B2@1 0U@2 2F3@3] 2B3@3 2U@3 0B3@2 0U@3",
        placement=Placement(((1, 0, 1),)),
    )


# Programs that repeat and that the runtime, if asked nevertheless, would fail at or train wrongly.
REPEATING = {
    "the gradient of a step that joins the update before": repeating(
        "0F0@0 0F1@0 0B0@0 0F2@0 0B1@0 0U@0 [0F3@1 0B2@0 0U@1] 0B3@1 0U@2 0U@3"
    ),
    "a backward with older weights, and no stash": repeating(
        "0F0@0 0B0@0 0U@0 [0F1@1 0B1@0 0U@1]", is_stashing=False
    ),
    "a forward with older weights, and no stash": repeating(
        "0F0@0 0B0@0 0U@0 [0F1@0 0B1@1 0U@1]", is_stashing=False
    ),
    "an update between recomputation and backward, and no stash": repeating(
        "0F0@0 0R0@0 0B0@0 0F1@0 [0R1@0 0U@0 0F2@1 0B1@1] 0R2@1 0U@1 0B2@2 0U@2",
        is_stashing=False,
    ),
    "the data of the next step first": repeating(
        "0F0@0 0F1@0 0B0@0 0U@0 0B1@0 0U@1 [0F2@2 0F3@2 0B2@2 0U@2 0B3@2 0U@3]",
        "1F1@0 1F0@0 1B0@0 1U@0 1B1@0 1U@1 [1F3@2 1F2@2 1B2@2 1U@2 1B3@2 1U@3]",
    ),
    "a gradient that waits for the next step": first_stage_waiting(),
    "an end in another order than the body": repeating(
        "0F0@0 0F1@0 0F2@0 0B0@0 0B1@0 0B2@0 0U@0 [0F3@1 0F4@1 0F5@1 0B3@1 0B4@1 0B5@1 0U@1]"
        " 0F6@2 0F7@2 0F8@2 0B8@2 0B7@2 0B6@2 0U@2",
        microbatches=3,
    ),
    "an end with other versions than the body": repeating(
        "0F0@0 0B0@0 0U@0 [0F1@1 0B1@1 0U@1] 0F2@0 0B2@0 0U@2"
    ),
    "a body that runs nothing": repeating("0F0@0 0B0@0 0U@0 []"),
}

VALID = {
    "gpipe": gpipe(3, 4),
    "1f1b": one_f_one_b(3, 4),
    "zb-h1": zb_h1(3, 4),
    "interleaved": interleaved(2, 4, 2),
    "chimera": chimera(),
    "two-tower": two_tower(3),
    "frozen tower": two_tower(3, backward=Backward.NONE),
    "contrastive": contrastive("F0 F1 B0 B1"),
    "fan-out": fan_out(),
    "2bw": two_bw(3),
    "offloading": offloading(),
    "offloading in pieces": offloading_in_pieces(),
}
