"""How fast the page paints, in headless Chromium: medians over several rounds.

.venv/bin/python -m benchmarks.page.run --rounds 7
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from threading import Thread

from tests.web.browser import Browser, Page, browser
from weft.schedules import REGISTRY
from weft.simulate import simulate
from weft.web import write_page
from weft.web.server import Server

SIZES = {  # devices, microbatches, stages per device
    "8 x 64": ("1f1b", 8, 64, 1),
    "16 x 256 x 2": ("interleaved-1f1b", 16, 256, 2),
    "16 x 256 x 4": ("interleaved-1f1b", 16, 256, 4),
    "64 x 512 x 4": ("interleaved-1f1b", 64, 512, 4),
}
LIVE = (
    ("1f1b", 8, 64, 1),
    ("1f1b", 16, 64, 1),
    ("interleaved-1f1b", 16, 64, 2),
    ("zbv", 16, 64, 2),
)

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
ASK = """(async () => {
  const began = performance.now();
  const { post } = await import("weft/live.js");
  const { timelineOf } = await import("weft/data.js");
  const { answers } = await post("/timelines", { requests: [%s] });
  weft.adopt([timelineOf(answers[0].timeline, weft.words)]);
  weft.draw();
  weft.pen.context.getImageData(200, 100, 1, 1);
  return performance.now() - began;
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
        print("\n| live, slider to picture | |\n|---|---|")
        with Server() as server:
            Thread(target=server.serve_forever, daemon=True).start()
            for one in LIVE:
                print(live_row(running, server, one, rounds), flush=True)
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


def live_row(running: Browser, server: Server, size: tuple[str, int, int, int], rounds: int) -> str:
    schedule, devices, microbatches, stages = size
    page = running.page()
    page.open(server.address)
    page.until("weft.timelines.length")
    request = (
        f'{{"schedule": "{schedule}", "devices": {devices}, "microbatches": {microbatches},'
        f' "stages_per_device": {stages}, "latency": 0.1}}'
    )
    taken = times(page, ASK % request, rounds)
    return f"| {schedule} {devices} x {microbatches} x {stages} | {milliseconds(taken)} |"


def times(page: Page, code: str, rounds: int) -> list[float]:
    page.run(code)
    return [page.run(code) for _ in range(rounds)]


def milliseconds(taken: Sequence[float]) -> str:
    return f"{median(taken):.3g} ms"


if __name__ == "__main__":
    main()
