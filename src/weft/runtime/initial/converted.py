"""Checkpoints of Hugging Face as transformers itself reads them.

Files may have other names than the model, or parts of its tensors: without the prefix of a base
model, by names of earlier days, with each expert apart. transformers knows for every model what
belongs together; here its conversions run for one tensor of the model at a time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor

from weft.runtime.initial.checkpoint import Checkpoint


class SourceTensors(NamedTuple):
    """What is converted together: tensors of a checkpoint, each with the pattern it has matched."""

    first: str  # name in the model
    converter: Any  # None where a tensor is only renamed
    sources: list[tuple[str, str]]


class Converted:
    """A checkpoint by the names that a model of transformers has."""

    def __init__(self, checkpoint: Checkpoint, model: Any, known: Collection[str]) -> None:
        self.where, self._checkpoint, self._model = checkpoint.where, checkpoint, model
        self._known = dict.fromkeys(known, True)
        self._groups: dict[str, SourceTensors] = {}  # by all names that they have in the model
        loading: Any = import_module("transformers.core_model_loading")
        conversions: Any = import_module("transformers.conversion_mapping")
        found = conversions.get_model_conversion_mapping(model)
        self._renamings = [one for one in found if isinstance(one, loading.WeightRenaming)]
        self._converters = [one for one in found if isinstance(one, loading.WeightConverter)]
        self._rename = loading.rename_source_key
        for name in sorted(checkpoint.names, key=loading.dot_natural_key):
            self._add(name)

    @property
    def names(self) -> Collection[str]:
        ignored = [*(self._model._keys_to_ignore_on_load_unexpected or ())]
        return [
            name
            for name in self._groups
            if name in self._known or not any(re.search(one, name) for one in ignored)
        ]

    def outline(self, name: str) -> Tensor:
        return self._converted(name, self._checkpoint.outline)

    def tensor(self, name: str) -> Tensor:
        return self._converted(name, self._checkpoint.tensor)

    def _add(self, source: str) -> None:
        """See what a tensor of the checkpoint is in the model; the same where nothing is known."""
        name, pattern = self._renamed(source, self._renamings, self._converters)
        if name not in self._known and source in self._known:
            name, pattern = self._renamed(source, [], [])
        if pattern is None:
            self._groups[name] = SourceTensors(name, None, [(source, source)])
            return
        converter = next(one for one in self._converters if pattern in one.source_patterns)
        first, *others = converter.target_patterns
        group = self._groups.setdefault(name, SourceTensors(name, converter, []))
        group.sources.append((pattern, source))
        for other in others:
            self._groups[name.replace(first, other)] = group

    def _renamed(self, source: str, renamings: list[Any], converters: list[Any]) -> Any:
        prefix = self._model.base_model_prefix
        return self._rename(source, renamings, converters, prefix, self._known)

    def _converted(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        first, converter, sources = self._groups[name]
        if converter is None:
            return read(sources[0][1])
        one = copy.deepcopy(converter)
        for pattern, source in sources:
            one.add_tensor(first, source, pattern, read(source))
        found = one.convert(first, model=self._model, config=self._model.config)[name]
        made: Tensor = found[0] if isinstance(found, list) else found
        return made


def as_read_by(model: object, checkpoint: Checkpoint, known: Collection[str]) -> Checkpoint:
    """The checkpoint as a model of transformers reads it, whose names are known; else as it is."""
    return checkpoint if model is None else Converted(checkpoint, model, known)
