"""Pictures of what the other scripts have found. Needs matplotlib.

    python benchmarks/asynchronous/plot.py throughput.json simulated.json memory.json

Writes measured, simulated, latency and memory as SVG and PNG next to this script.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    "gpipe": {"color": "#999999", "marker": "s"},
    "1f1b": {"color": "#333333", "marker": "v"},
    "interleaved-1f1b": {"color": "#4477aa", "marker": "^"},
    "pipedream-2bw": {"color": "#ee7733", "marker": "o"},
    "pipedream-2bw eager": {"color": "#ee7733", "marker": "o", "fillstyle": "none"},
    "wpipe": {"color": "#228833", "marker": "D"},
    "wpipe eager": {"color": "#228833", "marker": "D", "fillstyle": "none"},
}
PARTS = {
    "weights": "#4477aa",
    "gradients": "#66ccee",
    "optimizer": "#bbbbbb",
    "activations": "#ee7733",
    "outputs": "#ccbb44",
}
SIZE = "samples of a microbatch"
SHARED: dict[str, Any] = {"sharey": "row", "layout": "constrained"}
MEBI = 1 << 20

Curves = Mapping[str, Sequence[tuple[float, float]]]


def drawn(axes: Axes, curves: Curves, **looks: Any) -> None:
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=name, **{**STYLES[name], **looks})


def sized(panels: Sequence[Sequence[Axes]], least: float) -> None:
    """Throughput on top, its share of what busy devices would reach below."""
    panels[1][0].set_ylim(least, 1.02)
    for axes in (*panels[0], *panels[1]):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
    for top, bottom in zip(*panels, strict=True):
        top.set_yscale("log")
        bottom.set(xlabel=SIZE)
    panels[0][0].set_ylabel("samples / s")
    panels[1][0].set_ylabel("of devices that never wait")


def named(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    known: dict[str, Any] = {}
    for label, handle in zip(labels, handles, strict=True):
        known.setdefault(label, handle)
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=len(known))


def measured(rows: Sequence[dict[str, Any]]) -> Figure:
    """Symbols are measured, dashed lines ideal."""
    by_ranks = grouped(rows, "ranks")
    figure, panels = plt.subplots(2, len(by_ranks), figsize=(9, 5.2), **SHARED)
    sized(panels, 0.58)
    for column, (ranks, mine) in enumerate(by_ranks.items()):
        top, bottom = panels[:, column]
        top.set_title(f"M : N = {ranks} : {mine[0]['replicas']}")
        rate, ideal, share, bound = (defaultdict(list) for _ in range(4))
        for row in mine:
            most = row["methods"]["pipedream-2bw"]["ideal"]
            for name, found in row["methods"].items():
                rate[name].append((row["size"], found["rate"][0]))
                ideal[name].append((row["size"], found["ideal"]))
                share[name].append((row["size"], found["rate"][0] / most))
                bound[name].append((row["size"], found["ideal"] / most))
        drawn(top, rate, linestyle="none")
        drawn(bottom, share, linestyle="none")
        for axes, curves in ((top, ideal), (bottom, bound)):
            drawn(axes, curves, marker="", linestyle="--", linewidth=0.8)
    named(figure, panels[0][0])
    return figure


def simulated(rows: Sequence[dict[str, Any]]) -> Figure:
    """With links of 20 µs and 12.5 GB/s; the share is of the rate with free links."""
    free = {
        (row["ranks"], row["size"]): row["rate"]
        for row in rows
        if row["links"] == "free" and row["method"] == "pipedream-2bw"
    }
    by_ranks = grouped([row for row in rows if row["links"] != "free"], "ranks")
    figure, panels = plt.subplots(2, len(by_ranks), figsize=(13, 5.2), **SHARED)
    sized(panels, 0.4)
    for column, (ranks, mine) in enumerate(by_ranks.items()):
        top, bottom = panels[:, column]
        top.set_title(f"M : N = {ranks} : {64 // ranks}")
        rate, share = defaultdict(list), defaultdict(list)
        for row in mine:
            rate[row["method"]].append((row["size"], row["rate"]))
            share[row["method"]].append((row["size"], row["rate"] / free[ranks, row["size"]]))
        drawn(top, rate)
        drawn(bottom, share)
    named(figure, panels[0][0])
    return figure


def latency(rows: Sequence[dict[str, Any]]) -> Figure:
    by_ranks = grouped([row for row in rows if row["ranks"] in (8, 64)], "ranks")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", squeeze=False)
    for axes, (ranks, mine) in zip(panels[0], by_ranks.items(), strict=False):
        curves = defaultdict(list)
        for row in mine:
            curves[row["method"]].append((row["latency"] * 1e6, row["share"]))
        drawn(axes, curves)
        axes.set(title=f"{ranks} ranks", xlabel="latency of a link, µs", ylim=(0.5, 1.02))
    panels[0][0].set_ylabel("share of time that devices work")
    named(figure, panels[0][0])
    return figure


def memory(rows: Sequence[dict[str, Any]]) -> Figure:
    """A bar for each device."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
    for axes, recompute in zip(panels, ("no", "yes"), strict=True):
        axes.set_title("recomputed" if recompute == "yes" else "not recomputed")
        names, ticks = [], []
        for index, row in enumerate(r for r in rows if r["recompute"] == recompute):
            names.append(row["schedule"])
            ticks.append(5 * index + 1.5)
            for device, held in enumerate(row["bytes"]):
                stacked(axes, 5 * index + device, held)
        axes.set_xticks(ticks, names)
    panels[0].set_ylabel("MiB of devices 0 to 3")
    named(figure, panels[0])
    return figure


def stacked(axes: Axes, place: float, held: Mapping[str, int]) -> None:
    bottom = 0.0
    for part, color in PARTS.items():
        axes.bar(place, held[part] / MEBI, 0.85, bottom=bottom, color=color, label=part)
        bottom += held[part] / MEBI


def grouped(rows: Sequence[dict[str, Any]], key: str) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("throughput", "simulated", "memory"):
        parser.add_argument(name, type=json_file)
    given = parser.parse_args()
    mpl.rcParams.update(
        {
            "font.size": 8,
            "svg.fonttype": "none",
            "svg.hashsalt": "weft",
            "lines.markersize": 4,
            "lines.linewidth": 1,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e6e6e6",
        }
    )
    for name, figure in {
        "measured": measured(given.throughput["rows"]),
        "simulated": simulated(given.simulated["rates"]),
        "latency": latency(given.simulated["uses"]),
        "memory": memory(given.memory["rows"]),
    }.items():
        path = Path(__file__).with_name(name)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=110)
        print(path)


def json_file(path: str) -> Any:
    return json.loads(Path(path).read_text())


if __name__ == "__main__":
    main()
