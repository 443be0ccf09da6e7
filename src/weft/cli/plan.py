"""`weft plan`: from a model, a cluster and a batch to the plans that train it soonest."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic

import click

from weft.cli.files import check_folder, write
from weft.cli.frontier import show_frontier
from weft.cli.help import Sectioned, names_of
from weft.cli.names import device_names, model_names
from weft.cli.options import Flag, as_json, bundled, flags, option
from weft.cli.output import facts, show, show_json, table
from weft.cli.planned import described, notes_of, rows_of, words_of
from weft.cli.progress import bar
from weft.cli.status import INTERRUPTED
from weft.cost.units import SECONDS, fitting
from weft.errors import InputError
from weft.plan.asked import Wish
from weft.plan.needs import Need, needs, shortage
from weft.plan.progress import Found
from weft.plan.question import EFFORT, Choices, Question
from weft.plan.search import searching
from weft.request import plan_to_json
from weft.request.values import AMOUNT, COUNT, FILE, SWITCH, Whole

TOP = 10
TIME = "Stop after this time; the answer then depends on the machine."
OUT = "Write the best plan to a file, or all that are shown to a folder."
FRONTIER = "Draw time against memory of every schedule, and of what is synthesised."

WISH = flags(
    Wish,
    cluster=Flag("A JSON file with the devices, instead of --devices and --device.", "FILE"),
    devices=Flag("Devices of the cluster.", "N", "-d"),
    device=Flag("Their kind; `weft list devices` has names.", "NAME|FILE", complete=device_names),
    batch=Flag("Tokens of a step: 4194304, 4_194_304, 4Mi (x 1024 x 1024) or 4M.", "TOKENS"),
    sequence=Flag("Tokens per sequence.  [default: the model's]", "TOKENS"),
    state_bytes=Flag(
        "Bytes per parameter: weights, gradients, optimizer state.  [default: 2,4,12]", "W,G,O"
    ),
    from_run=Flag("Plan again from what a run of `weft train` has measured.", "RUN"),
)

CHOICES = flags(
    Choices,
    schedule=Flag("Only these.", "NAME,NAME,..."),
    tensor=Flag("Devices that share every layer.", "T"),
    pipeline=Flag("Devices of a pipeline.", "D"),
    replicas=Flag("Copies of the pipeline.", "R"),
    experts=Flag("Groups of devices that share the experts of a stage.", "E"),
    microbatch_size=Flag("Sequences per microbatch.", "SEQUENCES"),
    stages_per_device=Flag("Stages on each device.", "K", "-k"),
    recompute=Flag("What is computed again: as little as makes a plan fit, or this."),
    offload=Flag("Whether saved state may go to the host where that makes a plan fit."),
    optimizer=Flag("Whether copies share the optimizer's state; what is faster, or this."),
    max_tensor=Flag("At most that many devices share a layer.", "T"),
    max_pipeline=Flag("At most that many devices in a pipeline.", "D"),
    max_microbatch_size=Flag("At most that many sequences per microbatch.", "SEQUENCES"),
    max_stages_per_device=Flag("At most that many stages on each device.", "K"),
)


@click.command(
    "plan",
    cls=Sectioned,
    sections={"What to train, on what": names_of(Wish), "What is decided": names_of(Choices)},
)
@click.argument("model", required=False, shell_complete=model_names)
@bundled("wish", Wish, WISH)
@bundled("choices", Choices, CHOICES)
@option(Whole(most=1000), "top", Flag("Plans that are shown.", "N"), TOP)
@option(COUNT, "effort", Flag("Actions that may be simulated.", "ACTIONS"), EFFORT)
@option(AMOUNT, "seconds", Flag(TIME, "SECONDS", name="--time"))
@option(FILE, "out", Flag(OUT, "FILE|FOLDER", "-o"))
@option(SWITCH, "is_frontier", Flag(FRONTIER, name="--frontier"), False)
@as_json
def command(
    model: str | None,
    wish: Wish,
    choices: Choices,
    top: int,
    effort: int,
    seconds: float | None,
    out: Path | None,
    is_frontier: bool,
    is_json: bool,
) -> None:
    """Plan the training of MODEL: what should I run on these devices?

    \b
      $ weft plan gpt-1.5b -d 8 --device a100 --batch 128Ki --pipeline 4 --schedule 1f1b,zbv --top 2
         schedule  T  D  K  R   N  B  time, ms    MFU  memory, GiB  bubble  limit
      1  zbv       1  4  2  2  64  1     573.1  84.0%        6.183    4.4%  bubble 4.0%
      2  1f1b      1  4  1  2  64  1     597.4  80.5%        6.783    8.3%  bubble 7.2%
      T            devices that share every layer
      D            devices of a pipeline
      K            stages on each of them
      R            copies of the pipeline
      N            microbatches
      B            sequences of each
      Plan 1 has stages of 3 3 3 3 3 3 3 1 layers.

    \b
      $ weft plan gpt-1.5b -d 8 --device a100 --batch 131072 --schedule 1f1b -o plan.json
      $ weft draw plan.json                as simulate, explain and verify take it
      $ weft plan gpt-1.5b -d 4 --device a100 --batch 8192 --pipeline 4 --frontier -o x.svg

    \b
    With files of your own:
      weft plan config.json --cluster mine.json --batch 4Mi -o plan.json
      weft train --plan plan.json
      weft plan --from-run runs/plan -o again.json

    MODEL is a config.json of Hugging Face, a name of `weft list models`, a model file, or a cost
    file that `weft profile` has measured. Divides the devices into groups that share layers
    (tensor parallelism, within a node), pipelines and replicas, the batch into microbatches and
    the layers into stages, with every synchronous schedule and variant, and simulates a whole
    step of each: messages, sums of gradients and updates included. Memory is relieved only where
    a plan does not fit: layers on emptier devices, selective recompute, as few recomputed stages
    as will do, offload. Copies share the optimizer's state unless it is faster if they do not.
    Asynchronous schedules change what is learned, and are not tried.

    Ranked by time; plans within 0.5% of each other count as equally fast, and of these the one
    comes first that bears wrong times best. The answer is the same on every machine: the effort is
    counted in simulated actions. Ctrl-C prints what was found so far, with exit status 130.

    With --frontier, time against memory on the division of the best plan, or on the one that
    --tensor, --pipeline and --microbatch-size leave: every schedule a point, synthesised orders a
    line; in the terminal, or with -o as .svg or .png, or as a page (.html) whose points open their
    timelines.

    With --json one object: plans (ranked, with seconds, mfu, memory, account of the time, and all
    that decides them), needs (what would make the first faster), and what was tried.
    """
    question = replace(wish.question(model, choices), effort=effort)
    if out is not None:
        check_folder(out)
    if is_frontier:
        words = f"{model or wish.from_run} on {question.cluster.devices}"
        show_frontier(question, words, out, is_json=is_json)
        return
    found, is_interrupted = _searched(question, seconds)
    if not found.proposals:
        if is_interrupted:
            raise click.Abort
        raise InputError(shortage(question).words)
    needed = [] if is_interrupted else needs(found)
    if out is not None:
        _write(out, found, top)
    if is_json:
        show_json(described(question, found, needed, top))
    else:
        _show(found, needed, top)
    if is_interrupted:
        raise SystemExit(INTERRUPTED)


def _show(found: Found, needed: list[Need], top: int) -> None:
    shown = found.proposals[:top]
    show(table(*rows_of(shown)), "", facts(notes_of(shown)), "")
    for words in words_of(found, needed):
        show(words)


def _searched(question: Question, seconds: float | None) -> tuple[Found, bool]:
    """What a search finds until it ends, the time is over or somebody interrupts it."""
    found, end = Found(), monotonic() + (inf if seconds is None else seconds)
    try:
        with bar("looking at what fits", is_shown=True) as update:
            for found in searching(question):
                update(min(1.0, found.actions / question.effort), _best(found))
                if monotonic() > end:
                    break
    except KeyboardInterrupt:
        return found, True
    return found, False


def _best(found: Found) -> str:
    """The best so far, in words; before all microbatches are simulated, its time is a guess."""
    if not found.proposals:
        return "nothing fits yet"
    best = found.proposals[0]
    seconds = fitting(best.predicted.seconds, SECONDS).amount(best.predicted.seconds)
    about = "" if best.trial.is_full else "about "
    return f"best so far: {about}{seconds}  {best.trial.candidate.title}"


def _write(out: Path, found: Found, top: int) -> None:
    """The best to a file; to a folder all that are shown, by rank."""
    if not out.is_dir():
        write(out, plan_to_json(found.proposals[0].plan))
        return
    for rank, one in enumerate(found.proposals[:top], start=1):
        write(out / f"{rank:02d}-{one.trial.candidate.schedule.name}.json", plan_to_json(one.plan))
