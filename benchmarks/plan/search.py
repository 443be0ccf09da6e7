"""How long `weft plan` searches, and how soon it has what it ends with.

    .venv/bin/python benchmarks/plan/search.py [--json FILE]

Each question is asked once, in one process. Seconds are by the clock and, beside them, of the
processor: on a machine that others use, the second is what an idle one would take. The answers
themselves, and the actions simulated for them, are the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

from weft.cost import Cluster, device_named, model_named
from weft.plan.progress import Found
from weft.plan.question import Question
from weft.plan.search import searching

NEAR = 1.01  # times the best that is found in the end


class Asked(NamedTuple):
    """A model, on as many devices of a kind, with as many sequences in a batch."""

    model: str
    devices: int
    device: str
    sequences: int


QUESTIONS = (
    Asked("gpt-1.5b", 8, "a100", 128),
    Asked("llama-3-8b", 16, "h100", 128),
    Asked("llama-3-70b", 64, "h100", 512),
    Asked("mixtral-8x7b", 64, "h100", 512),
    Asked("llama-3-405b", 512, "h100", 1024),
)


def measured(asked: Asked) -> dict[str, object]:
    """When the first answer came, one within a per cent of the last, and the last."""
    model = model_named(asked.model)
    cluster = Cluster(devices=asked.devices, device=device_named(asked.device))
    question = Question(model=model, cluster=cluster, batch=asked.sequences * model.sequence)
    clock, processor = time.monotonic(), time.process_time()
    seen: list[tuple[float, float, float]] = []
    found = Found()
    for found in searching(question):
        if found.proposals:
            best = min(one.predicted.seconds for one in found.proposals)
            seen.append((time.monotonic() - clock, time.process_time() - processor, best))
    ended = time.monotonic() - clock, time.process_time() - processor
    last = seen[-1][2] if seen else float("inf")
    near = next((one for one in seen if one[2] <= NEAR * last), None)
    return {
        **asked._asdict(),
        "first": seen[0][:2] if seen else None,
        "near": near and near[:2],
        "end": ended,
        "tried": found.tried,
        "hopeless": found.hopeless,
        "candidates": found.candidates,
        "actions": found.actions,
        "best": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for asked in QUESTIONS:
        rows.append(measured(asked))
        print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
