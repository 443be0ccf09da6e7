"""Graph: chains and branches, and the errors for what is neither."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.ir.graph import Graph, Stage


def test_chain() -> None:
    graph = Graph.chain(3)
    assert graph.is_chain
    assert graph.heights == (2, 1, 0)
    assert graph.predecessors == ((), (0,), (1,))


def test_two_tower_heights_follow_each_tower() -> None:
    graph = Graph.two_tower(2)
    assert graph.edges == ((0, 1), (1, 4), (2, 3), (3, 4))
    assert graph.heights == (2, 1, 2, 1, 0)


def test_inception() -> None:
    graph = Graph.inception()
    assert graph.successors[0] == (1, 2, 3, 4)
    assert graph.predecessors[5] == (1, 2, 3, 4)
    assert max(graph.heights) == 2


def test_a_skip_edge_does_not_shorten_the_way() -> None:
    diamond = Graph((Stage(),) * 4, ((0, 1), (1, 2), (2, 3), (0, 3)))
    assert diamond.heights == (3, 2, 1, 0)


@pytest.mark.parametrize("edges", [((1, 0),), ((0, 0),), ((0, 7),), ((0, 1), (0, 1))])
def test_bad_edges_are_refused(edges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InputError, match="edge"):
        Graph((Stage(),) * 2, edges)


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(InputError, match="at least one stage"):
        Graph((), ())
