"""The text of a program: one line for one fact, one line for one lane.

    weft program 1
    name 1f1b
    microbatches 2
    graph chain 2
    place 0 1                     the device of each stage; a line for each pipe
    device 0: 0F0 0F1 0B0 0B1     a line for each lane
    device 1: 1F0 1B0 1F1 1B1

And where they apply: `pipes 0 0 1 1`, the pipe of each microbatch; `period 4 versions 1
repeats 3`, what each repetition of the body shifts, and how many there are; `no-stash`; `parts
2`, how many make an ordinary microbatch; `tie 0 3`, the stages of a tied weight; `norm 0 1 2 3`,
stages whose updates share a norm; `experts 0 1`, pipes that hold some of the experts each, and
exchange tokens. After the first, lines may stand in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.errors import InputError, NotationError
from weft.ir.actions import Actions
from weft.ir.graph import Graph
from weft.ir.lanes import Lane, Period
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.ir.weights import Sharing
from weft.notation.limits import (
    check_actions,
    check_cells,
    check_exchanges,
    check_forwards,
    check_lane,
    check_pipes,
    check_repeats,
    check_sharing,
    check_ties,
    check_total,
)
from weft.notation.places import in_source, on_line
from weft.notation.text.graph import graph_lines, read_graph
from weft.notation.text.lanes import Body, lane_lines, lane_name, read_actions, read_body, read_lane
from weft.notation.text.lines import HEADER, Line, Lines, needed, read_lines
from weft.notation.text.words import counts, escaped, unescaped

_SHARED = ("tie", "norm")  # as the fields of Sharing


def to_text(program: Program) -> str:
    """The program as text, which `from_text` reads back to an equal one."""
    return "".join(f"{line}\n" for line in (*_facts(program), *lane_lines(program)))


def from_text(text: str, source: str = "") -> Program:
    """The program that a text describes; NotationError where it cannot be read."""
    with in_source(source):
        return _program(read_lines(text))


# writing


def _facts(program: Program) -> Iterator[str]:
    yield HEADER
    if program.name:
        yield f"name {escaped(program.name)}"
    yield f"microbatches {program.microbatches}"
    yield from graph_lines(program.graph)
    for devices in program.placement.pipes:
        yield f"place {' '.join(map(str, devices))}"
    if any(program.pipe_of):
        yield f"pipes {' '.join(map(str, program.pipe_of))}"
    if program.period is not None:
        period = program.period
        words = f"{period.microbatches} versions {period.versions} repeats {period.repeats}"
        yield f"period {words}"
    if not program.is_stashing:
        yield "no-stash"
    if program.parts > 1:
        yield f"parts {program.parts}"
    for keyword, groups in zip(_SHARED, program.sharing, strict=True):
        for group in groups:
            yield f"{keyword} {' '.join(map(str, group))}"
    for pipes in program.expert_groups:
        yield f"experts {' '.join(map(str, pipes))}"


# reading


def _program(lines: Lines) -> Program:
    graph = read_graph(lines)
    placement = _placement(lines["place"], graph)
    microbatches = _microbatches(lines, graph)
    shift = _shift(lines["period"], graph)
    sharing = _sharing(lines, graph)
    lanes: dict[Lane, Actions] = {}
    bodies: list[Body] = []
    edge_of = {edge: index for index, edge in enumerate(graph.edges)}
    total = 0
    needed(lines, "device", "device 0: 0F0 0B0")
    for number, words in lines["device"]:
        with on_line(number):
            lane, tokens = read_lane(words)
            if lane in lanes:
                raise InputError(f"the lane `{lane_name(lane)}` stands twice")
            check_lane(lane, placement)
            actions = lanes[lane] = read_actions(tokens, edge_of)
            total += int(actions.span.sum(dtype=np.int64))
            check_total(total)
            check_actions(actions, graph, placement, microbatches)
            check_ties(actions, sharing.ties)
            bodies.append(_body(tokens, is_periodic=shift is not None))
    program = Program.build(
        _name(lines["name"]),
        placement,
        lanes,
        microbatches=microbatches,
        graph=graph,
        pipe_of=_pipe_of(lines["pipes"], placement, microbatches),
        period=_period(bodies, shift),
        is_stashing=not _is_set(lines["no-stash"]),
        parts=_parts(lines["parts"], microbatches),
        expert_groups=_expert_groups(lines["experts"]),
        **sharing._asdict(),
    )
    check_repeats(program.actions)
    check_sharing(program.actions, sharing, program.stages)
    check_exchanges(program.actions, program.expert_groups)
    check_forwards(program.actions, program.stages, microbatches)
    return program


def _name(lines: list[Line]) -> str:
    for number, words in lines:
        with on_line(number):
            return unescaped(" ".join(words))
    return ""


def _placement(lines: list[Line], graph: Graph) -> Placement:
    pipes = []
    for number, words in lines:
        with on_line(number):
            pipes.append(tuple(counts(words, "place 0 1 2 3", exactly=len(graph))))
    if not pipes:
        raise InputError("a program needs a line `place 0 1 2 3`: the device of each stage")
    with on_line(lines[-1].number):
        check_pipes(len(pipes))
        return Placement(tuple(pipes))


def _microbatches(lines: Lines, graph: Graph) -> int:
    number, words = needed(lines, "microbatches", "microbatches 4")
    with on_line(number):
        (microbatches,) = counts(words, "microbatches 4", exactly=1)
        if microbatches < 1:
            raise InputError("a step has at least 1 microbatch")
        check_cells(graph, microbatches)
    return microbatches


def _pipe_of(lines: list[Line], placement: Placement, microbatches: int) -> list[int]:
    for number, words in lines:
        with on_line(number):
            pipes = counts(words, "pipes 0 0 1 1", exactly=microbatches)
            if max(pipes) >= len(placement.pipes):
                given = len(placement.pipes)
                raise InputError(f"pipe {max(pipes)}, but {given} pipes have a line `place`")
            return pipes
    return [0] * microbatches


def _parts(lines: list[Line], microbatches: int) -> int:
    for number, words in lines:
        with on_line(number):
            (parts,) = counts(words, "parts 2", exactly=1)
            if parts < 1 or microbatches % parts:
                raise InputError(f"{parts} parts do not make whole microbatches")
            return parts
    return 1


def _sharing(lines: Lines, graph: Graph) -> Sharing:
    sharing = Sharing()
    for keyword, field in zip(_SHARED, Sharing._fields, strict=True):
        groups: tuple[tuple[int, ...], ...] = ()
        for number, words in lines[keyword]:
            with on_line(number):
                groups += (tuple(counts(words, f"{keyword} 0 3", exactly=len(words))),)
                Sharing(**{field: groups}).check("the program", len(graph))
        sharing = sharing._replace(**{field: groups})
    return sharing


def _expert_groups(lines: list[Line]) -> list[list[int]]:
    groups = []
    for number, words in lines:
        with on_line(number):
            groups.append(counts(words, "experts 0 1", exactly=len(words)))
    return groups


def _is_set(lines: list[Line]) -> bool:
    for number, words in lines:
        if words:
            raise NotationError("`no-stash` stands alone", line=number)
    return bool(lines)


# periods


_PERIOD = "period 4 versions 1 repeats 3"


def _shift(lines: list[Line], graph: Graph) -> tuple[int, int, int] | None:
    """By how many microbatches and versions each of how many repetitions is shifted."""
    for number, words in lines:
        with on_line(number):
            if words[1:2] != ["versions"] or words[3:4] != ["repeats"]:
                raise InputError(f"a period reads `{_PERIOD}`")
            microbatches, versions, repeats = counts(
                [words[0], words[2], *words[4:]], _PERIOD, exactly=3
            )
            check_cells(graph, microbatches)
            return microbatches, versions, repeats
    return None


def _body(words: list[str], *, is_periodic: bool) -> Body:
    body = read_body(words)
    if body is None and is_periodic:
        raise InputError("a lane of a periodic program encloses what repeats in [ and ]")
    if body is not None and not is_periodic:
        raise InputError(f"[ and ] enclose what repeats, which takes a line `{_PERIOD}`")
    return body or Body(0, 0)


def _period(bodies: list[Body], shift: tuple[int, int, int] | None) -> Period | None:
    if shift is None:
        return None
    microbatches, versions, repeats = shift
    return Period(
        prologue=tuple(body.prologue for body in bodies),
        body=tuple(body.length for body in bodies),
        microbatches=microbatches,
        versions=versions,
        repeats=repeats,
    )
