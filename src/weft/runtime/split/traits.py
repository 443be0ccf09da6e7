"""Traits: what a traced model's calls weigh and return, and whether they draw; by running them."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from weft.errors import InputError
from weft.runtime.split.attributes import CONSTANT
from weft.runtime.split.copies import copied
from weft.runtime.split.trace import Part, Trace, is_on_meta
from weft.runtime.stage.values import Value

ROUNDS = 3  # of measured time


class Traits(NamedTuple):
    """What is known of a call.

    weight   by which stages are balanced
    bytes    of what it returns
    is_view  whether that is a view of what it reads
    travels  whether what it returns can pass between stages
    draws    whether it draws at random
    learns   whether what it returns depends on a weight that learns
    """

    weight: float
    bytes: int
    is_view: bool
    travels: bool
    draws: bool
    learns: bool


def traits_of(trace: Trace, balance: str) -> dict[fx.Node, Traits]:
    """The traits of every node, on the example."""
    if balance == "time" and is_on_meta(trace.model):
        raise InputError("a model on the meta device takes no time; balance by flops or parameters")
    measure = {"parameters": _parameters, "flops": _flops, "time": _seconds}.get(balance)
    if measure is None:
        raise InputError(f"balance={balance!r}; stages are balanced by parameters, flops or time")
    rounds = [_Interpreter(trace, measure) for _ in range(ROUNDS if balance == "time" else 1)]
    for one in rounds:
        one.begin()
    nodes = [*trace.graph.nodes]
    weights = [statistics.median(one.weights[node] for one in rounds) for node in nodes]
    weights = _of_rank_0(weights) if balance == "time" else weights
    found = rounds[0].found
    return {
        node: found[node]._replace(weight=weight)
        for node, weight in zip(nodes, weights, strict=True)
    }


def refuse_kept(trace: Trace) -> None:
    """Refuse calls that change a tensor which the forward makes: stages make it once."""
    if not any(name.startswith(CONSTANT) for name in trace.parts):
        return
    run = _Interpreter(trace, _parameters)
    run.begin()
    if run.changed:
        raise InputError(
            f"{type(trace.model).__name__} cannot be followed through its modules: it changes a"
            f" tensor in place that its forward makes of no input, and that stages make once; make"
            f" it anew (total = total + value), or of an input (value.new_zeros(...))"
        )


def _of_rank_0(weights: list[float]) -> list[float]:
    """What the first rank has measured: all ranks have to cut alike."""
    if not (dist.is_available() and dist.is_initialized()):
        return weights
    found = [weights]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def _copied_parts(trace: Trace) -> dict[str, Part]:
    """Copies of all that the graph reads."""
    names = {
        str(node.target) for node in trace.graph.nodes if node.op in ("get_attr", "call_module")
    }
    parts = {name: trace.part(name) for name in names}
    modules = [part for part in parts.values() if isinstance(part, nn.Module)]
    made = copied(parts, modules, type(trace.model).__name__)
    for part in made.values():
        if isinstance(part, nn.Module) and trace.is_training != trace.model.training:
            part.train(trace.is_training)
    return made


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anything is drawn; with a seed, every draw begins with it.

    So two runs draw the same, in whatever order.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first draw imports all of torch.compile, which takes seconds

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self.is_drawn = seed, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            self.is_drawn = True
            if self._seed is not None:
                torch.manual_seed(self._seed)
        return func(*args, **(kwargs or {}))


class _Interpreter(fx.Interpreter):
    """A run of the whole graph, on copies."""

    def __init__(self, trace: Trace, measure: Callable[..., float]) -> None:
        parts: Any = _copied_parts(trace)
        made = {name: part for name, part in parts.items() if name.startswith(CONSTANT)}
        self._made = [(name, tensor, tensor._version) for name, tensor in made.items()]
        module = fx.GraphModule(parts, trace.graph)
        super().__init__(module)
        self._trace, self._measure, self._seen = trace, measure, set[int]()
        self.found: dict[fx.Node, Traits] = {}
        self.weights: dict[fx.Node, float] = {}
        # GraphModule has a graph of its own, with the same nodes in the same order.
        self._own = dict(zip(module.graph.nodes, trace.graph.nodes, strict=True))

    def begin(self) -> None:
        traced = copy.deepcopy(self._trace.inputs.traced)
        places = [node for node in self._own if node.op == "placeholder"]
        device_type = next((leaf.device.type for leaf in _tensors(traced)), "cpu")
        devices: list[int] | None = [] if device_type in ("cpu", "meta") else None
        with torch.random.fork_rng(devices), torch.enable_grad():
            self.run(*[traced[str(place.target)] for place in places])

    @property
    def changed(self) -> list[str]:
        """Tensors that the forward makes of no input, and that calls have changed in place."""
        return [name for name, tensor, version in self._made if tensor._version != version]

    def run_node(self, n: fx.Node) -> Any:
        node, value = self._own[n], None
        draws = Draws()

        def run() -> Any:
            nonlocal value
            with draws:
                value = super(_Interpreter, self).run_node(n)
            return value

        self.weights[node] = self._measure(run, self._reads(node), self._seen)
        tensors = _tensors(value)
        size = sum(leaf.numel() * leaf.element_size() for leaf in tensors)
        is_view = node.op != "call_module" and any(leaf._is_view() for leaf in tensors)
        is_learning = any(leaf.requires_grad for leaf in tensors)
        self.found[node] = Traits(0.0, size, is_view, _travels(value), draws.is_drawn, is_learning)
        return value

    def _reads(self, node: fx.Node) -> list[nn.Parameter]:
        """The weights that a call reads."""
        if node.op == "call_module":
            part = self._trace.part(str(node.target))
            return [*part.parameters()] if isinstance(part, nn.Module) else []
        names = [str(one.target) for one in node.all_input_nodes if one.op == "get_attr"]
        parts = [self._trace.part(name) for name in names]
        return [part for part in parts if isinstance(part, nn.Parameter)]


def _parameters(run: Callable[[], Any], weights: Sequence[nn.Parameter], seen: set[int]) -> float:
    """Of the weights that no call before has read."""
    run()
    new = {id(weight): weight for weight in weights if id(weight) not in seen}
    seen |= new.keys()
    return float(sum(weight.numel() for weight in new.values()))


def _flops(run: Callable[[], Any], weights: Sequence[nn.Parameter], seen: set[int]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def _seconds(run: Callable[[], Any], weights: Sequence[nn.Parameter], seen: set[int]) -> float:
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _travels(value: Any) -> bool:
    try:
        Value.of(value, "it")
    except InputError:
        return False
    return True
