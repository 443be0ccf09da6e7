"""How fast the page paints, in headless Chromium: medians over several rounds.

.venv/bin/python -m benchmarks.page.run --rounds 7
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from threading import Thread

from tests.web.browser import Browser, Page, browser
from weft.schedules import REGISTRY
from weft.simulate import simulate
from weft.web import write_page
from weft.web.requests import proved
from weft.web.server import Server

SIZES = {  # devices, microbatches, stages per device
    "8 x 64": ("1f1b", 8, 64, 1),
    "16 x 256 x 2": ("interleaved-1f1b", 16, 256, 2),
    "16 x 256 x 4": ("interleaved-1f1b", 16, 256, 4),
    "64 x 512 x 4": ("interleaved-1f1b", 64, 512, 4),
}
DEVICES, MICROBATCHES = 16, 64  # of the live page

# A picture counts once its pixels are there: reading one back waits for the painter.
PAINT = """(() => {
  const began = performance.now();
  weft.draw();
  weft.pen.context.getImageData(200, 100, 1, 1);
  return performance.now() - began;
})()"""
HOVER = """import("weft/hover.js").then(({ hitAt }) => {
  const began = performance.now();
  for (let turn = 0; turn < 200; turn++) hitAt(weft, 150 + 4 * turn, 100 + 2 * turn);
  return (performance.now() - began) / 200;
})"""
# From the question to the new picture, and how much of that the page takes.
ASK = """(async () => {
  const began = performance.now();
  const { post } = await import("weft/live.js");
  const { timelineOf } = await import("weft/data.js");
  const { answers } = await post("/timelines", { requests: [%s] });
  const answered = performance.now();
  weft.adopt([timelineOf(answers[0].timeline, weft.words)]);
  weft.draw();
  weft.pen.context.getImageData(200, 100, 1, 1);
  return [performance.now() - began, performance.now() - answered];
})()"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with browser() as running, tempfile.TemporaryDirectory() as folder:
        print(
            "| size | actions | file | data and first paint | full view | zoomed to 10 % | hover |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, size in SIZES.items():
            print(row(running, Path(folder), name, size, rounds), flush=True)
        print(f"\n| live, {DEVICES} x {MICROBATCHES} | new shape | new costs | of that the page |")
        print("|---|---|---|---|")
        with Server() as server:
            Thread(target=server.serve_forever, daemon=True).start()
            page = running.page()
            page.open(server.address)
            rows = [live(page, *asked, rounds) for asked in live_shapes()]
            print("\n".join(row for _, row in sorted(rows, reverse=True)))
            server.shutdown()


def row(
    running: Browser, folder: Path, name: str, size: tuple[str, int, int, int], rounds: int
) -> str:
    path = folder / "page.html"
    schedule, devices, microbatches, stages = size
    program = REGISTRY[schedule](
        devices=devices, microbatches=microbatches, stages_per_device=stages
    )
    write_page(path, [simulate(program)])
    page, first = opened(running, path, rounds)
    full = times(page, PAINT, rounds)
    page.run("weft.zoom(0.1)")
    zoomed = times(page, PAINT, rounds)
    page.run("weft.fit()")
    hover = times(page, HOVER, rounds)
    cells = [
        f"{path.stat().st_size / 2**20:.1f} MiB",
        *map(milliseconds, (first, full, zoomed, hover)),
    ]
    return f"| {name} | {len(program):,} | {' | '.join(cells)} |"


def opened(running: Browser, path: Path, rounds: int) -> tuple[Page, list[float]]:
    """The page, and how long it took from its data to its first picture, each time."""
    found = []
    for _ in range(rounds):
        page = running.page()
        page.open(path.as_uri())
        found.append(page.run("weft.times.decode + weft.times.first"))
    return page, found


def live_shapes() -> Iterator[tuple[str, int]]:
    """Every schedule with one and with two stages per device, where it takes them."""
    for schedule in REGISTRY:
        least, most = schedule.stages_per_device
        for stages in (1, 2):
            if least <= stages <= (most or stages):
                yield schedule.name, stages


def live(page: Page, schedule: str, stages: int, rounds: int) -> tuple[float, str]:
    """Median milliseconds from a slider to the picture, and the row that says so."""
    sizes = {"devices": DEVICES, "microbatches": MICROBATCHES, "stages_per_device": stages}
    question = ASK % json.dumps({"schedule": schedule, **sizes, "updates": 2, "latency": 0.1})
    page.run(question)
    shape = []
    for _ in range(rounds):
        proved.cache_clear()  # as after a slider of the shape
        shape.append(page.run(question)[0])
    costs = [page.run(question) for _ in range(rounds)]
    cells = map(milliseconds, (shape, [all_of for all_of, _ in costs], [own for _, own in costs]))
    return median(shape), f"| {schedule} x {stages} | {' | '.join(cells)} |"


def times(page: Page, code: str, rounds: int) -> list[float]:
    page.run(code)
    return [page.run(code) for _ in range(rounds)]


def milliseconds(taken: Sequence[float]) -> str:
    return f"{median(taken):.3g} ms"


if __name__ == "__main__":
    main()
