"""Pictures and tables of what `run.py` has found.

    python benchmarks/convergence/report.py FILE.json [--readme] [--pictures FOLDER]

Prints the tables; with `--readme` they replace those of the README. The pictures, each as SVG and
PNG, need matplotlib: `curves` has the losses, `rates` how each method bears its learning rate.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from methods import MAIN, METHODS, ROUND, SWEPT
from quadratic import bound
from run import FULL, QUICK, Curve, Size, Sweep
from tasks import ROWS

Row = dict[str, Any]

HERE = Path(__file__).parent
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
NAMES = {"digits": "ResNeXt on digits", "bert": "BERT-like", "gpt": "GPT"}
RULES = {
    "sgd": "SGD",
    "momentum": "SGD with momentum 0.9",
    "adamw": "AdamW",
    "adamw-still": "AdamW with β₁ = 0",
}
COLOURS = dict(
    zip(SWEPT, ("#000000", "#d55e00", "#0072b2", "#8c8c8c", "#cc79a7", "#e69f00"), strict=True)
)
LEARNED = 0.97  # of the loss of an answer that ignores the input
PLAIN = [name for name in METHODS if "N=8" not in name and "temper" not in name]


class Found:
    """What is in the file, by what it is of."""

    def __init__(self, file: Path) -> None:
        self.whole = json.loads(file.read_text(), object_hook=_known)
        self.is_quick: bool = self.whole["is_quick"]
        self.size: Size = QUICK if self.is_quick else FULL

    def runs(self, part: Curve | Sweep, method: str) -> list[Row]:
        """By seed, and those of a sweep by rate too."""
        kind = type(part).__name__.lower()
        keys = ("part", "task", "optimizer", "method")
        wanted = (kind, part.task, part.optimizer, method)
        rows = [row for row in self.whole["runs"] if tuple(row[key] for key in keys) == wanted]
        if isinstance(part, Curve):
            rows = [row for row in rows if row["rate"] == part.run(method, 0).rate]
        return sorted(rows, key=lambda row: (row["rate"], row["seed"]))

    def by_rate(self, sweep: Sweep, method: str) -> dict[float, list[Row]]:
        """From the lowest rate to the highest."""
        rates: dict[float, list[Row]] = {}
        for row in self.runs(sweep, method):
            rates.setdefault(row["rate"], []).append(row)
        return rates


def _known(row: Row) -> Row:
    """What a run that was not finite did not come to, it missed by far."""
    return {key: math.inf if value is None else value for key, value in row.items()}


# figures


def is_stable(run: Row) -> bool:
    """No part of the run is worse than its start, and the last one is better than no input."""
    return bool(run["worst"] <= run["start"] and run["end"] <= LEARNED * run["constant"])


def largest_stable(rates: dict[float, list[Row]]) -> float | None:
    """The largest rate at which every seed is stable."""
    stable = [rate for rate, rows in rates.items() if all(map(is_stable, rows))]
    return max(stable, default=None)


def best(rates: dict[float, list[Row]]) -> tuple[float, float]:
    """The rate with the lowest mean loss at the end, and that loss."""
    ends = {rate: mean(row["end"] for row in rows) for rate, rows in rates.items()}
    rate = min(ends, key=ends.__getitem__)
    return rate, ends[rate]


def spread(values: Iterable[float], form: str) -> str:
    """The mean, and the least and the greatest."""
    known = list(values)
    if not all(map(math.isfinite, known)):
        return f"diverged in {sum(not math.isfinite(value) for value in known)} of {len(known)}"
    around = f" ({min(known):{form}}–{max(known):{form}})" if len(known) > 1 else ""
    return f"{mean(known):{form}}{around}"


# tables


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    for index, cells in enumerate([list(columns), *map(list, rows)]):
        yield f"| {' | '.join(cells)} |"
        if not index:
            yield "|---" * len(cells) + "|"
    yield ""


def curves_table(found: Found, curve: Curve) -> Iterator[str]:
    columns = ("method", "N", "rate", "seeds", "training loss", "held-out loss", "accuracy %")
    yield from table(columns, _curve_rows(found, curve))


def _curve_rows(found: Found, curve: Curve) -> Iterator[list[str]]:
    for name, method in METHODS.items():
        if rows := found.runs(curve, name):
            yield [
                _short(name),
                str(method.microbatches),
                f"{rows[0]['rate']:.3g}",
                str(len(rows)),
                spread((row["end"] for row in rows), ".3f"),
                spread((row["held_out"] for row in rows), ".3f"),
                spread((100 * row["accuracy"] for row in rows), ".1f"),
            ]


def stable_table(found: Found) -> Iterator[str]:
    """The largest stable rate of each, and over that of its synchronous counterpart."""
    yield from _swept(found, lambda sweep, name: _stable_cell(found, sweep, name))


def _stable_cell(found: Found, sweep: Sweep, name: str) -> str:
    rate = largest_stable(found.by_rate(sweep, name))
    other = largest_stable(found.by_rate(sweep, METHODS[name].like))
    if rate is None:
        return "none"
    is_highest = rate == max(found.by_rate(sweep, name))
    share = f" ({rate / other:.2f})" if other and name != METHODS[name].like else ""
    return f"{'≥ ' if is_highest else ''}{rate:.2g}{share}"


def best_table(found: Found) -> Iterator[str]:
    """The training loss at the end of a short run at its best rate."""
    yield from _swept(found, lambda sweep, name: _best_cell(found, sweep, name))


def _best_cell(found: Found, sweep: Sweep, name: str) -> str:
    rate, end = best(found.by_rate(sweep, name))
    return f"{end:.3f} at {rate:.2g}"


def _swept(found: Found, cell: Callable[[Sweep, str], str]) -> Iterator[str]:
    sweeps = [sweep for sweep in found.size.sweeps if found.runs(sweep, "synchronous")]
    columns = ("method", "N", *(f"{sweep.task}, {sweep.optimizer}" for sweep in sweeps))
    rows = (
        [
            _short(name),
            str(METHODS[name].microbatches),
            *(cell(sweep, name) if found.runs(sweep, name) else "" for sweep in sweeps),
        ]
        for name in SWEPT
    )
    yield from table(columns, rows)


def quadratic_table(found: Found) -> Iterator[str]:
    by_name = {row["method"]: row for row in found.whole["quadratic"]}
    names = [name for name in (*PLAIN, "wpipe fresh, N=8") if name in by_name]
    wanted = [name for name in names if name != "synchronous, N=1"]
    rows = (
        [name, *(_middle(by_name[name][key]) for key in ("sgd", "momentum"))] for name in wanted
    )
    yield from table(("method", "SGD", "SGD with momentum 0.9"), rows)
    single = ", ".join(f"{bound(delay) / 2:.3f}" for delay in range(4))
    yield f"One coordinate that is 0, 1, 2 or 3 updates stale, without momentum: {single}."
    yield ""


def _middle(values: list[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def agreement_table(found: Found) -> Iterator[str]:
    columns = ("task", "updates", "weights moved by", "1f1b differs by", "data parallel differs by")
    rows = (
        [row["task"], str(row["updates"])]
        + [f"{row[key]:.2g}" for key in ("moved", "1f1b", "data parallel")]
        for row in found.whole["agreement"]
    )
    yield from table(columns, rows)


def tables(found: Found) -> Iterator[str]:
    """All of them, in the order of the README."""
    machines = " and ".join(
        f"{machine['cores']} cores with torch {machine['torch'].split('+')[0]}"
        for machine in found.whole["machines"]
    )
    is_part = "**A quick run, which only shows that the script works.** " if found.is_quick else ""
    yield (
        f"{is_part}{len(found.whole['runs'])} runs, {found.whole['seconds'] / 60:.1f} minutes on"
        f" {machines}."
    )
    yield ""
    for curve in reversed(found.size.curves):
        samples = curve.rounds * ROUND * ROWS[curve.task]
        yield (
            f"### {NAMES[curve.task]}, {RULES[curve.optimizer]}, rate {curve.rate}: {samples:,}"
            f" samples in microbatches of {ROWS[curve.task]}"
        )
        yield ""
        yield from curves_table(found, curve)
    sections = (
        ("Largest stable rate", stable_table),
        ("Training loss at the end of a short run, at the best rate", best_table),
        ("Largest stable rate on random quadratics, over that of synchronous", quadratic_table),
        ("Data parallel is 1F1B", agreement_table),
    )
    for title, lines in sections:
        yield from (f"### {title}", "")
        yield from lines(found)


PICTURES = """\
![Training loss over samples: mean and range of the seeds](curves.svg)

![The end of short runs over their rate; a disc marks the largest stable one](rates.svg)
"""


def write_readme(lines: Iterable[str]) -> None:
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n\n{PICTURES}\n" + "\n".join(lines) + f"\n{END}{after}")


def _short(name: str) -> str:
    return name.split(",")[0]


# pictures


def curves_picture(found: Found, axes: Any) -> None:
    """Mean and range of the seeds' training losses, over the samples seen."""
    for axis, curve in zip(axes.flat, reversed(found.size.curves), strict=True):
        samples = curve.rounds * ROUND * ROWS[curve.task]
        for name in MAIN:
            runs = [row for row in found.runs(curve, name) if math.isfinite(row["end"])]
            points = list(zip(*(row["losses"] for row in runs), strict=True))
            if points:
                seen = [samples * (index + 0.5) / len(points) for index in range(len(points))]
                band = {"color": COLOURS[name], "alpha": 0.18, "linewidth": 0}
                axis.fill_between(seen, *(list(map(f, points)) for f in (min, max)), **band)
                axis.plot(seen, list(map(mean, points)), **_line(name))
        axis.set_title(f"{NAMES[curve.task]}, {RULES[curve.optimizer]}, rate {curve.rate}")
        axis.set_xlabel("samples")
    for row in axes:
        row[0].set_ylabel("training loss")


def rates_picture(found: Found, axes: Any) -> None:
    """The training loss at the end of short runs, over the rate."""
    for axis, sweep in zip(axes.flat, reversed(found.size.sweeps), strict=True):
        tops = [row["start"] for row in found.runs(sweep, "synchronous")]
        top = mean(tops) if tops else 1.0
        for name in SWEPT:
            rates = found.by_rate(sweep, name)
            ends = [mean(min(row["end"], 2 * top) for row in rows) for rows in rates.values()]
            axis.plot(list(rates), ends, **_line(name), marker=".", markersize=4)
            limit = largest_stable(rates)
            if limit is not None:
                axis.plot(limit, ends[list(rates).index(limit)], "o", color=COLOURS[name])
        axis.axhline(top, color="#bbbbbb", linewidth=0.8)
        axis.set_title(f"{NAMES[sweep.task]}, {RULES[sweep.optimizer]}")
        axis.set_xscale("log")
        octaves = range(1 + int((sweep.steps - 0.9) * math.log2(sweep.factor)))
        axis.set_xticks([sweep.lowest * 2**octave for octave in octaves])
        axis.xaxis.set_major_formatter("{x:.2g}")
        axis.minorticks_off()
        axis.set_ylim(0 if sweep.task == "digits" else None, 1.2 * top)
        axis.set_xlabel("rate of an update")
    for row in axes:
        row[0].set_ylabel("training loss at the end")


def _line(name: str) -> dict[str, Any]:
    dashes = "--" if METHODS[name].like == name else "-"
    return {"color": COLOURS[name], "linestyle": dashes, "linewidth": 1.3, "label": name}


def draw(found: Found, folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {
        "font.size": 8,
        "svg.hashsalt": "weft",
        "svg.fonttype": "none",
        "axes.spines.top": False,
    }
    mpl.rcParams |= {"axes.spines.right": False, "axes.titlesize": 8}
    _picture(found, folder / "curves", curves_picture, (2, 2), (9, 6.4))
    _picture(found, folder / "rates", rates_picture, (2, 3), (11, 6.4))


def _picture(
    found: Found,
    stem: Path,
    fill: Callable[[Found, Any], None],
    grid: tuple[int, int],
    inches: tuple[float, float],
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*grid, figsize=inches, layout="constrained", squeeze=False)
    fill(found, axes)
    lines, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("json", type=Path, help="what run.py has written")
    parser.add_argument("--readme", action="store_true", help="put the tables into the README")
    parser.add_argument("--pictures", type=Path, help="folder for curves and rates, SVG and PNG")
    arguments = parser.parse_args()
    found = Found(arguments.json)
    lines = list(tables(found))
    print("\n".join(lines))
    if arguments.readme:
        write_readme(lines)
    if arguments.pictures:
        draw(found, arguments.pictures)


if __name__ == "__main__":
    main()
