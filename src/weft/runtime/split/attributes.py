"""Attributes of modules, which a forward that is traced may not change: no graph would do so."""

from __future__ import annotations

from typing import Any

from torch import nn

PLAIN = (bool, int, float, str)
CONSTANT = "_tensor_constant"  # what torch.fx calls tensors that a forward makes


class Attributes:
    """The attributes of a module alone."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = {name: (value, _opened(value)) for name, value in _attributes(module)}

    def restored(self) -> bool:
        """Put back what was there; whether anything had changed."""
        now = dict(_attributes(self._module))
        is_changed = now.keys() != self._values.keys()
        for name, (value, content) in self._values.items():
            if not _is_kept(now.get(name), value) or not _is_same(_opened(value), content):
                is_changed = True
                vars(self._module)[name] = value if content is None else _refilled(value, content)
        for name in now.keys() - self._values.keys():
            del vars(self._module)[name]
        return is_changed


def _attributes(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if not name.startswith(CONSTANT)]


def _is_kept(now: Any, before: Any) -> bool:
    """Whether a value is what it was, to all who read it: torch.export makes tuples anew."""
    if now is before:
        return True
    if type(now) is not type(before) or type(now) not in (tuple, *PLAIN):
        return False
    if type(now) is tuple:
        return len(now) == len(before) and all(map(_is_kept, now, before))
    return bool(now == before)


def _opened(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict, set) else None


def _refilled(value: Any, content: Any) -> Any:
    value.clear()
    getattr(value, "extend" if isinstance(value, list) else "update")(content)
    return value


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return [*now] == [*before] and all(now[key] is before[key] for key in now)
    if isinstance(now, list):
        return len(now) == len(before) and all(map(lambda a, b: a is b, now, before))
    return bool(now == before)
