"""Planning: from a model, a cluster and a batch to the program that trains it soonest.

    Question ──> divisions ───> candidates ──> trials ───> proposals ──> Plans
                 (layout,       (schedule,     (briefly    (in full,
                  microbatches)  stages)        simulated)  ranked)

Formulas order the search and leave out what cannot fit or cannot be faster; only the simulator
ranks. `synthesis` makes orders that no schedule has. Knows no torch.
"""

from weft.plan.frontier import Frontier, FrontierPoint, frontier
from weft.plan.needs import Need, Shortage, needs, shortage
from weft.plan.progress import Found
from weft.plan.proposal import Proposal
from weft.plan.question import Choices, Question
from weft.plan.search import search, searching

__all__ = [
    "Choices",
    "Found",
    "Frontier",
    "FrontierPoint",
    "Need",
    "Proposal",
    "Question",
    "Shortage",
    "frontier",
    "needs",
    "search",
    "searching",
    "shortage",
]
