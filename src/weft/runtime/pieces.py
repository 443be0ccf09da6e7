"""Pieces: stages cut into their layers, so that what they save leaves layer by layer.

A whole stage leaves less room: what is in use, and what is on its way, stays on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.ir.kinds import Kind, Layer
from weft.ir.program import Program
from weft.lower import experts
from weft.runtime.device.shards import is_gathered, is_sharded
from weft.runtime.stage.segments import pieces_of

MOST_PIECES = 8  # of a stage: more would leave little less on the way


def cut_for_offload(program: Program, stages: Sequence[nn.Module]) -> Program:
    """The same program with stages cut into their layers, as far as they have several."""
    pieces = [min(MOST_PIECES, pieces_of(stage)) for stage in stages]
    can_cut = max(pieces) > 1 and _takes_whole_stages(program) and not any(map(_is_spread, stages))
    return experts(program, layers=[[Layer.PLAIN] * one for one in pieces]) if can_cut else program


def _takes_whole_stages(program: Program) -> bool:
    """Whether a program says nothing yet of how its stages are run."""
    actions = program.actions
    reasons_not = (
        program.period is not None,  # its bodies would have to be cut alike
        bool(program.expert_groups),  # tokens are exchanged within its actions
        bool((actions.segment >= 0).any()),
        bool((actions.span != 1).any()),
        bool((actions.kind == Kind.R).any()),  # which reads the inputs of the stage alone
    )
    return not any(reasons_not)


def _is_spread(stage: nn.Module) -> bool:
    """Whether several ranks hold the weights of a stage together."""
    return is_gathered(stage) or any(map(is_sharded, stage.parameters()))
