"""Descriptions: models, devices and clusters that a reader has, as the page asks with them.

A dropped file becomes plain fields, and fields that come back with a question become the same
model or device: the server keeps nothing, and a link to the page holds all that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import TypeAlias

from weft.cost import Cluster, Device, Transformer, device_named, model_named, parameters
from weft.cost.mapping import as_mapping
from weft.cost.units import BYTES, Unit, fitting
from weft.errors import InputError
from weft.request.values import Text, read

Description: TypeAlias = Transformer | Device | Cluster

NAME = Text(most=80)
MOST_LAYERS = 4096  # of a model that is sent: every one of them is costed
_COUNTS = (Unit("B", 1e9), Unit("M", 1e6), Unit("K", 1e3), Unit("", 1.0))


def described(found: Description, file: str, text: str) -> dict[str, object]:
    """What the page keeps of a file: its kind, a name, a line about it, and its fields."""
    match found:
        case Transformer():
            _check_layers(found)
            return _kept("model", _model_name(file, text), summary_of(found), found)
        case Device():
            return _kept("device", PurePath(file).stem, _device_words(found), found)
        case Cluster(devices=devices, device=device):
            name = found.name or PurePath(file).stem
            words = f"{devices} devices of {_device_words(device)}"
            return {**_kept("cluster", name, words, device), "devices": devices}


def summary_of(model: Transformer) -> str:
    """How large a model is."""
    count = parameters(model)
    return (
        f"{fitting(count, _COUNTS).amount(count)} parameters, {model.layers} layers,"
        f" sequences of {model.sequence} tokens"
    )


def read_model(given: object) -> Transformer:
    """A model by its name, or out of its fields."""
    if not isinstance(given, Mapping):
        return model_named(read(NAME, given, "model"))
    model = Transformer.from_mapping(given)
    _check_layers(model)
    return model


def read_device(given: object) -> Device:
    """A device by its name, or out of its fields."""
    if not isinstance(given, Mapping):
        return device_named(read(NAME, given, "device"))
    return Device.from_mapping(given)


def _kept(kind: str, name: str, summary: str, found: Transformer | Device) -> dict[str, object]:
    return {"kind": kind, "name": name[:80], "summary": summary, "fields": as_mapping(found)}


def _device_words(device: Device) -> str:
    memory = fitting(device.memory, BYTES).amount(device.memory)
    return f"{device.peak / 1e12:.4g} TFLOP/s and {memory}"


def _model_name(file: str, text: str) -> str:
    """That of the file; a config.json is called by the model that it says it is of."""
    stem = PurePath(file).stem
    if stem != "config":
        return stem
    config = json.loads(text)
    own = config.get("_name_or_path") or config.get("model_type")
    return PurePath(own).name if isinstance(own, str) and PurePath(own).name else "own model"


def _check_layers(model: Transformer) -> None:
    if model.layers > MOST_LAYERS:
        raise InputError(f"{model.layers:,} layers; the page takes models of up to {MOST_LAYERS:,}")
