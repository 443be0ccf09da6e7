"""`weft plan --frontier`: time against memory, in the terminal, as a picture or as JSON."""

from __future__ import annotations

from pathlib import Path

from weft.cli.files import write
from weft.cli.output import show, show_json
from weft.cli.progress import working
from weft.draw import to_png
from weft.draw.scatter import Scatter
from weft.draw.svg.scatter import scatter_to_svg
from weft.draw.terminal_scatter import scatter_lines
from weft.errors import InputError
from weft.plan.frontier import Frontier, frontier
from weft.plan.question import Question

ZOOM = 2.0
ENDINGS = (".svg", ".png", ".html")


def show_frontier(question: Question, words: str, out: Path | None, *, is_json: bool) -> None:
    """The frontier of a question, drawn where it is asked for."""
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise InputError(f"{out}: the picture of a frontier ends in {' or '.join(ENDINGS)}")
    with working("looking along the frontier"):
        found = frontier(question)
    title = f"{words} devices: {_division(found)}"
    scatter = found.scatter(title)
    if out is not None:
        write(out, _page(found) if out.suffix.lower() == ".html" else _picture(scatter, out))
    if is_json:
        show_json(_described(found))
    elif out is None:
        show(title, "")
        for line in scatter_lines(scatter):
            show(line)


def _picture(scatter: Scatter, out: Path) -> str | bytes:
    svg = scatter_to_svg(scatter)
    return to_png(svg, zoom=ZOOM) if out.suffix.lower() == ".png" else svg


def _page(found: Frontier) -> str:
    from weft.web.frontier import frontier_page  # which a frontier in the terminal does without

    return frontier_page(found.points)


def _division(found: Frontier) -> str:
    division, layout = found.division, found.division.layout
    experts = f", experts {layout.experts}" if layout.experts > 1 else ""
    return (
        f"tensor {layout.tensor}, pipeline {division.devices}{experts},"
        f" replicas {layout.replicas}, {division.microbatches} microbatches of"
        f" {division.microbatch_size}"
    )


def _described(found: Frontier) -> dict[str, object]:
    division, layout = found.division, found.division.layout
    is_limited = found.capacity < float("inf")
    return {
        "tensor": layout.tensor,
        "pipeline": division.devices,
        "experts": layout.experts,
        "replicas": layout.replicas,
        "microbatches": division.microbatches,
        "microbatch_size": division.microbatch_size,
        **({"capacity": found.capacity} if is_limited else {}),
        "points": [
            {
                "title": point.title,
                "kind": point.kind,
                "seconds": point.seconds,
                "bytes": point.bytes,
                "is_fitting": point.is_fitting,
                "layers": list(point.proposal.trial.layers),
            }
            for point in found.points
        ],
    }
