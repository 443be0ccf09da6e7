"""What the site has beyond the files in docs/: the gallery, pictures, and what commands print.

MkDocs calls the two functions that begin with `on_`. A line `<!-- $ weft ... -->` of a page
becomes what the command gives: `weft draw` a picture, every other one its output. So no figure
in a page is typed by hand. `python docs/build.py` writes the table of schedules into the README.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from weft.cli import main
from weft.cost import Share
from weft.draw.caption import number, percent
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate

DEVICES, MICROBATCHES, UPDATES = 4, 8, 2
WIDTH = 840  # pixels of a picture, as many as the column has
COMMAND = re.compile(r"^<!-- \$ (weft .+) -->$", re.MULTILINE)
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")
MEASURES = {"wall": "from first start to last end", "span": "longest span of one device"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The gallery's pages, and every picture that a page asks for."""
    for path, text in gallery().items():
        files.append(File.generated(config, path, content=text))
    for page in list(files.documentation_pages()):
        for command in COMMAND.findall(page.content_string):
            path = picture_path(command)
            if is_picture(command) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, content=picture(command)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its commands carried out."""
    return filled(markdown, depth=page.file.src_uri.count("/"))


def filled(markdown: str, *, depth: int) -> str:
    """Every command of a page replaced by what it gives."""

    def given(found: re.Match[str]) -> str:
        command = found[1]
        if not is_picture(command):
            return f"```console\n$ {command}\n{run(command)}```"
        name = command.split()[2]
        source = "../" * depth + picture_path(command)
        return f"[![{name} over time]({source})]({source})\n\n`{command}`\n{{: .made-by }}"

    return COMMAND.sub(given, markdown)


@cache
def run(command: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(main, command.split()[1:])
    if done.exit_code:
        raise ValueError(f"{command}: {done.output or done.exception}")
    return done.stdout


@cache
def picture(command: str) -> str:
    """The SVG that a command draws."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "picture.svg")
        run(f"{command} -o {output}")
        return output.read_text()


def is_picture(command: str) -> bool:
    return command.startswith("weft draw ") and not command.endswith(" --help")


def picture_path(command: str) -> str:
    """Where the site keeps the picture of a command."""
    words = re.findall(r"[\w.]+", command.removeprefix("weft draw "))
    return f"pictures/{'-'.join(words)}.svg"


# the gallery


def gallery() -> dict[str, str]:
    """Every page of the gallery, by path."""
    pages = {f"gallery/{schedule.name}.md": "\n".join(_page(schedule)) for schedule in REGISTRY}
    return {"gallery/index.md": "\n".join(_index()), **pages}


def _index() -> Iterator[str]:
    yield "# Gallery\n"
    yield (
        f"Every schedule that Weft knows, on {DEVICES} devices with {MICROBATCHES} microbatches,"
        " where a forward takes 1, a backward 2 and messages take no time. This page and those"
        " it links to are made from the registry, and their figures by the simulator.\n"
    )
    yield "| schedule | time | bubble | peak | in short |"
    yield "|---|--:|--:|--:|---|"
    rows = _rows()
    for schedule in REGISTRY:
        cells = rows[schedule.name]
        yield f"| [{schedule.name}]({schedule.name}.md) | {cells} | {_text(schedule.summary)} |"
    yield (
        "\n*time* is that of a step; of an asynchronous schedule, that of as many microbatches once"
        " settled. *bubble* is the idle fraction of all devices in it, and *peak* the most"
        " microbatches in flight on a device. [How to read a timeline](../timeline.md) has the"
        " exact words, [Choose a schedule](../choose.md) what follows from them.\n"
    )
    for schedule in REGISTRY:
        yield f"## [{schedule.name}]({schedule.name}.md)\n\nIn short: {_text(schedule.summary)}.\n"
        yield f"<!-- $ {_command(schedule)} --size {WIDTH} -->\n"


def _page(schedule: Schedule) -> Iterator[str]:
    yield f"# {schedule.name}\n\nIn short: {_text(schedule.summary)}.\n"
    yield f"<!-- $ {_command(schedule)} --size {WIDTH} -->\n"
    paper = ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", _text(schedule.paper))
    yield f"Paper: {paper}.\n"
    yield "## What it claims\n"
    yield from _claims(schedule)
    yield "## What it takes\n"
    yield from _takes(schedule)
    yield from _variants(schedule)
    yield "## What is simulated\n"
    yield "The whole step, beside that of its variants:\n"
    yield f"<!-- $ weft compare {schedule.name} {_sizes()} -->\n"
    yield "Device by device:\n"
    yield f"<!-- $ {_command(schedule, 'simulate')} -->\n"


def _claims(schedule: Schedule) -> Iterator[str]:
    """The formulas, and where they hold what they and the simulator come to."""
    claims, shape = schedule.claims, _shape(schedule)
    program = schedule.program(shape).unrolled()
    timeline = simulate(program, Share().cost(program))
    spans = {"wall": timeline.makespan, "span": float(timeline.device_spans.max())}
    claimed = "does not apply"
    if claims.holds(shape, Share()):
        claimed = number(claims.seconds(shape, Share()))
    peaks = [claims.peak(shape, device) for device in range(DEVICES)]
    yield "| | formula | claimed here | simulated here |"
    yield "|---|---|---|---|"
    yield (
        f"| time, {MEASURES[claims.measure]} | {_text(claims.formula)} | {claimed} |"
        f" {number(spans[claims.measure])} |"
    )
    yield (
        f"| peak of devices 0 to {DEVICES - 1} | {_text(claims.peak_formula)} |"
        f" {_numbers(peaks)} | {_numbers(timeline.peak_activations)} |"
    )
    run_of, counts = "", "N that of microbatches"
    if schedule.is_asynchronous:
        run_of, counts = f", in a run of {UPDATES} updates", "n that of microbatches of an update"
    yield (
        f"\n*Here* is the shape of the picture, at F = I = W = 1 and no latency{run_of}. D is the"
        f" number of devices, {counts}, K that of stages on a device, d a device.\n"
    )


def _takes(schedule: Schedule) -> Iterator[str]:
    least, most = schedule.stages_per_device
    more = "" if most == least else " or more"
    yield f"- {least}{more} stage{'s' if least > 1 or more else ''} on each device"
    for need in schedule.needs:
        yield f"- {_text(need.words)}"
    for trait, words in (
        (schedule.takes_graph, "stages that branch (`--graph`)"),
        (schedule.takes_pipes, "several pipes in each direction (`--pipes`)"),
        (schedule.takes_round, "rounds of another length (`--round`)"),
    ):
        if trait:
            yield f"- {words}"
    for variant, meaning in schedule.variants.items():
        yield f"- `--variant {variant}`: {_text(meaning)}"
    yield ""


def _variants(schedule: Schedule) -> Iterator[str]:
    """A picture of each, at the nearest shape that it takes."""
    if schedule.variants:
        yield "## Its variants\n"
    for variant, meaning in schedule.variants.items():
        yield f"### {variant}\n\nIn short: {_text(meaning)}.\n"
        yield f"<!-- $ {_command(schedule, variant=variant)} --size {WIDTH} -->\n"


@cache
def _rows() -> dict[str, str]:
    """Time, bubble and peak of every schedule without a variant, as cells."""
    compared = json.loads(run(f"weft compare {_sizes()} --json"))["rows"]
    return {row["name"]: _cells(row) for row in compared if not row["variant"]}


def _cells(row: dict[str, object]) -> str:
    settled, bubble, peaks = row.get("steady"), row["bubble"], row["peak_activations"]
    assert isinstance(bubble, dict)
    assert isinstance(peaks, list)
    idle = settled["bubble"] if isinstance(settled, dict) else bubble["wall"]
    return f"{number(float(str(row['time'])))} | {percent(idle)} | {number(max(peaks))}"


def _shape(schedule: Schedule, variant: str = "") -> Shape:
    shape = Shape(
        devices=DEVICES,
        microbatches=MICROBATCHES,
        stages_per_device=schedule.stages_for(),
        updates=UPDATES,
        variant=variant,
    )
    refusal = schedule.accepts(shape)
    return refusal.nearest if refusal else shape


def _command(schedule: Schedule, verb: str = "draw", variant: str = "") -> str:
    shape = _shape(schedule, variant)
    flags = {
        "-d": shape.devices,
        "-n": shape.microbatches,
        "-k": shape.stages_per_device if schedule.stages_per_device[1] is None else "",
        "--variant": variant,
        "--round": shape.round or "",
        "--updates": UPDATES if schedule.is_asynchronous else "",
    }
    given = " ".join(f"{flag} {value}" for flag, value in flags.items() if value != "")
    return f"weft {verb} {schedule.name} {given}"


def _sizes() -> str:
    return f"-d {DEVICES} -n {MICROBATCHES}"


def _numbers(values: list[float]) -> str:
    return ", ".join(map(number, values))


def _text(words: str) -> str:
    """Words that Markdown shall take as they are."""
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", words)


# the README


def with_schedules(readme: str) -> str:
    """The README with the table of schedules as the registry has them."""
    table = "\n".join(_table())
    return re.sub(r"\| schedule \|.*?\n\n", lambda _: f"{table}\n\n", readme, flags=re.DOTALL)


def _table() -> Iterator[str]:
    yield "| schedule | in short | time | bubble | peak | paper |"
    yield "|---|---|--:|--:|--:|---|"
    for schedule in REGISTRY:
        variants = f" ({', '.join(schedule.variants)})" if schedule.variants else ""
        name, short = f"`{schedule.name}`{variants}", _text(schedule.summary)
        yield f"| {name} | {short} | {_rows()[schedule.name]} | {_paper(schedule)} |"


def _paper(schedule: Schedule) -> str:
    """The number of the first paper, or its name and year."""
    found = ARXIV.search(schedule.paper)
    if found is None:
        return _text(schedule.paper.split(" (")[0].split(", after")[0])
    return f"[{found[1]}](https://arxiv.org/abs/{found[1]})"


if __name__ == "__main__":
    README = Path(__file__).parents[1] / "README.md"
    README.write_text(with_schedules(README.read_text()))
