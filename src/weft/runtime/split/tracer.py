"""A model traced by its modules, which stay whole and the user's own.

Modules are opened only as far as stages may have to be cut inside of them. One whose forward cannot
be followed (it decides by data, draws, keeps state, changes what autograd does) is kept whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from weft.runtime.split.attributes import CONSTANT, Attributes
from weft.runtime.split.inputs import Inputs
from weft.runtime.stage.modules import is_compiled
from weft.runtime.stage.randomness import drawn_from, others_states

Opens: TypeAlias = Callable[[str, nn.Module], bool]


class Untraced(Exception):
    """A module whose forward cannot be followed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


def graph_by_modules(model: nn.Module, inputs: Inputs, opens: Opens, whole: set[str]) -> fx.Graph:
    """The calls of a model; modules that have to be kept whole are added to `whole`."""
    while True:
        try:
            return ModuleTracer(inputs, opens, whole).followed(model)
        except Untraced as error:
            if not error.path:
                raise
            whole.add(error.path)  # it was open, or nothing inside of it would be noticed


class ModuleTracer(fx.Tracer):
    """Follows a forward, and notices what a graph of it would leave out."""

    proxy_buffer_attributes = True

    def __init__(self, inputs: Inputs, opens: Opens, whole: set[str]) -> None:
        super().__init__()
        self._inputs, self._opens, self._whole = inputs, opens, whole
        self._context = _context()
        self._names: dict[nn.Module, list[str]] = {}
        self._paths: dict[nn.Module, str] = {}  # by which a module was called last
        self._counts: Counter[tuple[nn.Module, str]] = Counter()  # calls by a caller
        self._open = [""]  # the modules whose forwards are being followed

    def followed(self, model: nn.Module) -> fx.Graph:
        """The graph of a model."""
        self._context = _context()
        for name, module in model.named_modules(remove_duplicate=False):
            self._names.setdefault(module, []).append(name)
        return self._watched("", model, lambda: self.trace(model))  # type: ignore[no-any-return]

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Every input by name; what is not a tensor, as it is."""

        def call(root: nn.Module) -> Any:
            traced = {
                name: self.create_proxy("placeholder", name, (), {}) for name in self._inputs.traced
            }
            return root_fn(root, **traced, **self._inputs.fixed)

        return call, [self.root]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        path = module_qualified_name
        return (
            path in self._whole
            or not any(True for _ in m.children())
            or super().is_leaf_module(m, path)
            or is_hooked(m)
            or is_compiled(m)
            or not self._opens(path, m)
        )

    def path_of_module(self, mod: nn.Module) -> str:
        """The name by which it is called."""
        return self._paths[mod] if mod in self._paths else super().path_of_module(mod)

    def _called_by(self, caller: str, module: nn.Module) -> str:
        """Its name; a module that a caller has by several is called by each of them in turn."""
        names = self._names.get(module)
        if names is None:
            return super().path_of_module(module)
        near = [name for name in names if self._is_within(name, caller)] or names
        count = self._counts[module, caller]
        self._counts[module, caller] += 1
        return near[count % len(near)]

    def _is_within(self, name: str, caller: str) -> bool:
        """Whether nothing that could call a module lies between it and a caller."""
        prefix = f"{caller}." if caller else ""
        parents = name.removeprefix(prefix).split(".")[:-1]
        between = [prefix + ".".join(parents[: depth + 1]) for depth in range(len(parents))]
        lists = (nn.ModuleList, nn.ModuleDict)
        is_inside = name.startswith(prefix) and name != caller
        return is_inside and all(type(self.root.get_submodule(one)) in lists for one in between)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = self._paths[m] = self._called_by(self._open[-1], m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        call = super().call_module
        return self._watched(path, m, lambda: call(m, forward, args, kwargs))

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _context() != self._context:
            raise Untraced(self._open[-1], "it changes what autograd does")
        return super().create_node(*args, **kwargs)

    def _watched(self, path: str, module: nn.Module, run: Callable[[], Any]) -> Any:
        state, drawn, others = Attributes(module), torch.get_rng_state(), others_states()
        self._open.append(path)
        try:
            result = run()
        except Untraced:
            raise
        except Exception as error:
            raise Untraced(path, str(error)) from error
        finally:
            self._open.pop()
            is_changed = state.restored()
        if is_changed:
            raise Untraced(path, "it changes attributes of its own")
        if not torch.equal(drawn, torch.get_rng_state()):
            torch.set_rng_state(drawn)
            raise Untraced(path, "it draws at random")
        whose = drawn_from(others)
        if whose is not None:
            raise Untraced(path, f"it draws from {whose}")
        return result


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody is called with a module."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _context() -> object:
    """What changes the meaning of a call, and no graph has."""
    kinds = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
        [torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in kinds],
    )


def constants_of(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that tracing has left on a model, taken off it."""
    names = [name for name in vars(model) if name.startswith(CONSTANT)]
    return {name: vars(model).pop(name) for name in names}
