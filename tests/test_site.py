"""The documentation: built whole, from the registry, without another host."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from functools import cache
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.build import COMMAND, filled, is_picture, picture, picture_path
from docs.build import gallery as build_gallery
from docs.entries import pages
from tests.cli.running import weft, weft_json
from weft.cli import COMMANDS
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.timeline import Cause

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOADED = re.compile(
    r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'> ]*"""
    r"""|url\(["']?(?:https?:)?//|@import\s+["'](?:https?:)?//"""
)

gallery = cache(build_gallery)  # simulates every schedule

each_schedule = pytest.mark.parametrize("schedule", list(REGISTRY), ids=lambda s: s.name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` does; a warning, such as a link that leads nowhere, is an error."""
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    build(config)
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    made = [Path(path).with_suffix(".html") for path in gallery()]
    for page in [*pages, *made]:
        assert (site / page).is_file(), page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css"):
            assert LOADED.search(path.read_text()) is None, path


def test_every_picture_and_link_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for target in re.findall(r'(?:src|href)="([^"#?]+)', page.read_text()):
            if not re.match(r"\w+:", target):
                assert (page.parent / unescape(target)).exists(), f"{page.name}: {target}"


def test_the_reference_has_an_entry_for_every_public_name(site: Path) -> None:
    index = (site / "reference" / "index.html").read_text()
    for page in pages():
        built = (site / "reference" / f"{page.package}.html").read_text()
        for name in page.names:
            anchor = name.strip("_")
            assert f'<h2 id="{anchor}"><code>{name}</code></h2>' in built
            assert f'"{page.package}.html#{anchor}"' in index


def test_no_command_is_left_in_a_page(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "<!-- $ weft" not in page.read_text(), page


@each_schedule
def test_the_gallery_has_picture_claims_and_figures(schedule: Schedule) -> None:
    page = gallery()[f"gallery/{schedule.name}.md"]
    assert f"[{schedule.name}]({schedule.name}.md)" in gallery()["gallery/index.md"]
    command = COMMAND.findall(page)[0]
    assert picture_path(command) in filled(page, depth=1)
    assert f"<title>{schedule.name}: 4 devices" in picture(command)
    plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", page).replace("\\", "")
    for words in (schedule.paper, schedule.claims.formula, schedule.claims.peak_formula):
        assert words in plain
    drawn = [command for command in COMMAND.findall(page) if is_picture(command)]
    for variant in schedule.variants:
        assert f"`--variant {variant}`" in page
        assert any(f"--variant {variant} " in command for command in drawn)


@each_schedule
def test_the_gallerys_figures_are_the_simulators(schedule: Schedule) -> None:
    least, most = schedule.stages_per_device
    stages = least if most else 2
    shape = Shape(devices=4, microbatches=8, stages_per_device=stages, updates=2)
    timeline = simulate(schedule.program(shape).unrolled())
    seconds = {"wall": timeline.makespan, "span": float(timeline.device_spans.max())}
    page = gallery()[f"gallery/{schedule.name}.md"]
    peaks = ", ".join(f"{peak:g}" for peak in timeline.peak_activations)
    assert f"| {seconds[schedule.claims.measure]:g} |\n" in page
    assert f"| {peaks} |\n" in page
    if not schedule.is_asynchronous:
        row = f"| {timeline.makespan:g} | {100 * timeline.bubble.wall:.1f}% |"
        assert f"| [{schedule.name}]({schedule.name}.md) {row}" in gallery()["gallery/index.md"]


def test_the_guide_to_writing_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes a file
    names: dict[str, Any] = {"__name__": "example"}
    printed = StringIO()
    page = (DOCS / "write.md").read_text()
    for language, block in re.findall(r"```(python|text)\n(.*?)```", page, re.DOTALL):
        if language == "text":
            assert printed.getvalue() == block
            continue
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(block, "write.md", "exec"), names)  # noqa: S102  our own document
    assert names["losses"][-1] < names["losses"][0]
    (commands,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for command in commands.splitlines():
        if "train" not in command:
            assert weft(*command.split()[2:]).exit_code == 0, command


def test_the_page_of_commands_has_all_of_them() -> None:
    page = (DOCS / "commands.md").read_text()
    assert sorted(re.findall(r"<!-- \$ weft (\w+) --help -->", page)) == sorted(COMMANDS)


def test_the_guide_to_timelines_explains_every_cause() -> None:
    page = (DOCS / "timeline.md").read_text()
    for cause in Cause:
        assert f"| `{cause.value}` | {cause.meaning}" in page


def _exact(*words: str) -> dict[str, Any]:
    """By name, the rows of schedules whose gradients are exact, without variants."""
    rows = weft_json("compare", *words)["rows"]
    return {row["name"]: row for row in rows if not row["variant"] and not any(row["staleness"])}


def test_the_advice_on_memory_and_bubble_holds() -> None:
    rows = _exact("-d", "8", "-n", "32")
    frugal = [row for row in rows.values() if max(row["memory"]["peak"]) <= 9]
    least = min(row["time"] for row in frugal)
    best = {row["name"] for row in frugal if row["time"] == least}
    assert best == {"zbv", "interleaved-zb1p"}
    times = [rows[name]["time"] for name in ("zbv", "v-half", "v-min", "1f1b")]
    assert times == sorted(times)
    peaks = [max(rows[name]["peak_activations"]) for name in ("v-min", "v-half", "zbv", "1f1b")]
    assert peaks == sorted(peaks)
    assert rows["zbv"]["messages"] == 2 * rows["1f1b"]["messages"]


def test_the_advice_on_communication_holds() -> None:
    late = _exact("-d", "8", "-n", "32", "--latency", "0.5")
    assert max(late["eager-1f1b"]["time"], late["kimi-k2"]["time"]) < late["1f1b"]["time"]
    paired = ("--forward", "1.25", "--input-grad", "1.25", "--weight-grad", "1", "--pair", "3")
    rows = _exact("-d", "8", "-n", "32", *paired)
    for name in ("kimi-k2", "dualpipe", "dualpipev"):
        assert rows[name]["time"] < min(rows["zbv"]["time"], rows["1f1b"]["time"])
