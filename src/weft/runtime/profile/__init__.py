"""Profiles: what a program costs on the machine at hand, measured by the ranks that will run it.

    rounds     seconds of every action of every stage, all ranks at the same time
    updates    seconds of sums and updates, in steps of a pipeline that trains copies of the stages
    hops       how long messages take from rank to rank, through the transport of a run
    rests      what a host needs between two actions, found with stages that only rest
    memory     bytes of weights, gradients, optimizer state and what a microbatch leaves

`profiled` makes one Cost of all that, which `weft.simulate` predicts with.
"""

from weft.runtime.profile.measure import profiled
from weft.runtime.profile.sample import BRIEF, THOROUGH, Effort, Sample

__all__ = ["BRIEF", "THOROUGH", "Effort", "Sample", "profiled"]
