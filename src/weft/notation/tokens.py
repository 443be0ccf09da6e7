"""Tokens: one word for one action, both ways.

    2F0              stage 2, forward, microbatch 0; likewise B, I, W and R
    2F0..1           over microbatches 0 to 1
    2F0@3            with the weights of version 3
    2F0/0.attention  the attention of layer 0 alone
    send:1-2F0       the activation of microbatch 0 leaves stage 1 for stage 2
    recv:1-2F0       and arrives; with B, the gradient that goes from 2 to 1
    off:2F0  on:2F0  its saved state goes to the host and comes back; off:2F0/0.experts of a part
    2U@0             the update of stage 2 from version 0 to 1
    reduce:2@0       the sum of the gradients for that update
    free:2@0         version 0 of stage 2 is dropped
    2U@0~1           the update of stage 2's end of the tied weight 1 alone; likewise reduce:2@0~1
    2U@0#1           the same of pipe 1; a microbatch has its own pipe, so only these three say it

Knows the words, not what a program makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from weft.errors import InputError
from weft.ir.actions import COLUMNS, Actions
from weft.ir.kinds import EDGE_END, Kind, Part, segment
from weft.ir.program import Program
from weft.notation.places import shown

Edges: TypeAlias = Sequence[tuple[int, int]]
Row: TypeAlias = tuple[int, int, int, int, int, int, int, int]  # the columns but for `joined`

SPELLINGS: dict[int, tuple[str, str]] = {
    Kind.F: ("", "F"),
    Kind.B: ("", "B"),
    Kind.I: ("", "I"),
    Kind.W: ("", "W"),
    Kind.R: ("", "R"),
    Kind.SEND_ACTIVATION: ("send:", "F"),
    Kind.RECV_ACTIVATION: ("recv:", "F"),
    Kind.SEND_GRADIENT: ("send:", "B"),
    Kind.RECV_GRADIENT: ("recv:", "B"),
    Kind.OFFLOAD: ("off:", "F"),
    Kind.ONLOAD: ("on:", "F"),
    Kind.REDUCE: ("reduce:", ""),
    Kind.UPDATE: ("", "U"),
    Kind.FREE: ("free:", ""),
    Kind.GATHER: ("gather:", ""),
}

OF_TIES = (Kind.REDUCE, Kind.UPDATE, Kind.GATHER)  # may be about a tied weight

_KINDS = {SPELLINGS[kind]: kind for kind in Kind}
_LETTERS = {letter: kind for (prefix, letter), kind in _KINDS.items() if not prefix}
_PARTS = {part.name.lower(): part for part in Part}
_PLAIN = re.compile(r"([0-9]{1,9})([FBIWR])([0-9]{1,9})")
_ANY = re.compile(
    r"""(?P<prefix>[a-z]+:)? (?P<stage>N) (?:-(?P<to>N))? (?P<letter>[A-Z]?)
        (?P<first>N)? (?:\.\.(?P<last>N))? (?:@(?P<version>N))?
        (?:/(?P<layer>[0-9]{1,4})\.(?P<part>[a-z]+))? (?:~(?P<tie>N))?
        (?:\#(?P<pipe>N))?""".replace("N", "[0-9]{1,9}"),
    re.VERBOSE,
)


# writing


def token(program: Program, index: int) -> str:
    """The stable id of one action of a program."""
    return written(program.actions.take([index]), program.graph.edges)[0]


def written(actions: Actions, edges: Edges) -> list[str]:
    """A word for each action."""
    columns = [getattr(actions, name).tolist() for name in COLUMNS[:-1]]
    return [_word(row, edges) for row in zip(*columns, strict=True)]


def covered(microbatch: int, span: int) -> str:
    """The microbatches of an action: 0, 0..1, or nothing."""
    if microbatch < 0:
        return ""
    return f"{microbatch}..{microbatch + span - 1}" if span != 1 else str(microbatch)


def uses(version: int, segment: int) -> str:
    """The weights and the part of a layer that an action names: @3/0.attention, or nothing."""
    weights = f"@{version}" if version >= 0 else ""
    if segment < 0:
        return weights
    layer, part = divmod(segment, len(Part))
    return f"{weights}/{layer}.{Part(part).name.lower()}"


def _word(row: Row, edges: Edges) -> str:
    stage, kind, microbatch, span, version, pipe, edge, segment = row
    prefix, letter = SPELLINGS[kind]
    place, is_wire = str(stage), Kind.SEND_ACTIVATION <= kind <= Kind.RECV_GRADIENT
    if is_wire and 0 <= edge < len(edges):
        source, destination = edges[edge]
        place = f"{source}-{destination}"
    word = f"{prefix}{place}{letter}{covered(microbatch, span)}"
    if version >= 0 or segment >= 0:
        word += uses(version, segment)
    if edge >= 0 and not is_wire:
        word += f"~{edge}"
    return f"{word}#{pipe}" if pipe and kind > Kind.ONLOAD else word


# reading


def read_token(word: str, edge_of: Mapping[tuple[int, int], int]) -> Row:
    """The columns of one action."""
    plain = _PLAIN.fullmatch(word)
    if plain is not None:
        stage, letter, microbatch = plain.groups()
        return int(stage), _LETTERS[letter], int(microbatch), 1, -1, 0, -1, -1
    match = _ANY.fullmatch(word)
    if match is None:
        raise InputError(f"{shown(word)} is not an action; one reads 2F0: stage, kind, microbatch")
    given = match.groupdict()
    kind = _kind(word, given)
    stage_of, edge = _where(word, kind, given, edge_of)
    first, span = _extent(word, kind, given)
    return (
        stage_of,
        kind,
        first,
        span,
        _number(given["version"], -1),
        _number(given["pipe"], 0),
        edge,
        _segment(word, given),
    )


def _kind(word: str, given: Mapping[str, str | None]) -> Kind:
    kind = _KINDS.get((given["prefix"] or "", given["letter"] or ""))
    if kind is None:
        raise InputError(
            f"{shown(word)} is of no known kind; kinds are 2F0 B I W R, send: and recv: with F or"
            " B, off:2F0, on:2F0, 2U@0, reduce:2@0, gather:2@0 and free:2@0"
        )
    if given["pipe"] is not None and kind.has_microbatch:
        raise InputError(f"{shown(word)}: the pipe of a microbatch stands in the line `pipes`")
    return kind


def _where(
    word: str,
    kind: Kind,
    given: Mapping[str, str | None],
    edge_of: Mapping[tuple[int, int], int],
) -> tuple[int, int]:
    """Stage and edge."""
    source, destination = _number(given["stage"], -1), _number(given["to"], -1)
    if kind.is_wire != (given["to"] is not None):
        raise InputError(
            f"{shown(word)}: a send or receive names an edge, send:1-2F0, and nothing else does"
        )
    if given["tie"] is not None and kind not in OF_TIES:
        raise InputError(
            f"{shown(word)}: only a sum, an update or a gather names a tied weight, 2U@0~1"
        )
    if not kind.is_wire:
        return source, _number(given["tie"], -1)
    edge = edge_of.get((source, destination))
    if edge is None:
        raise InputError(f"{shown(word)}: the graph has no edge from {source} to {destination}")
    return (source, destination)[EDGE_END[kind]], edge


def _extent(word: str, kind: Kind, given: Mapping[str, str | None]) -> tuple[int, int]:
    """First microbatch and span."""
    if not kind.has_microbatch:
        if given["first"] is not None or given["last"] is not None:
            raise InputError(f"{shown(word)} belongs to no microbatch, but to a version: @0")
        return -1, 1
    if given["first"] is None:
        raise InputError(
            f"{shown(word)} names no microbatch; one reads 2F0: stage, kind, microbatch"
        )
    first = _number(given["first"], -1)
    last = _number(given["last"], first)
    if last < first:
        raise InputError(f"{shown(word)} covers no microbatch; a span reads first..last")
    return first, last - first + 1


def _segment(word: str, given: Mapping[str, str | None]) -> int:
    part = given["part"]
    if part is None:
        return -1
    if part not in _PARTS:
        raise InputError(f"{shown(word)}: the parts of a layer are {', '.join(_PARTS)}")
    return segment(_number(given["layer"], 0), _PARTS[part])


def _number(digits: str | None, otherwise: int) -> int:
    return otherwise if digits is None else int(digits)
