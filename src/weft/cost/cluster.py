"""Clusters: how many devices there are, and of which kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.cost.checks import check_count, check_text
from weft.cost.device import LINKS, Device
from weft.cost.devices import device_named
from weft.cost.mapping import keyword_arguments
from weft.errors import InputError

_OWN = ("devices", "device", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices, as many as there are to train with.

    devices  processors in all, `device.per_node` of them in a node
    """

    devices: int
    device: Device
    name: str = ""

    def __post_init__(self) -> None:
        check_count(self.devices, "devices", least=1)
        check_text(self.name, "name")
        if not isinstance(self.device, Device):
            raise InputError("device must be a Device: `device_named` has some by name")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Cluster:
        """The cluster that keys and values describe; InputError names the key that is wrong.

        The device is a name or keys and values of its own. Keys of a device that stand beside it
        take the place of its own; of a link, only what is given.
        """
        own = {key: value for key, value in mapping.items() if key in _OWN}
        changes = {key: value for key, value in mapping.items() if key not in _OWN}
        given = keyword_arguments(cls, own, "cluster")
        given["device"] = _changed(_device(given["device"]), changes)
        return cls(**given)

    def to_mapping(self) -> dict[str, object]:
        """What `from_mapping` reads."""
        name = {"name": self.name} if self.name else {}
        return {"devices": self.devices, "device": self.device.to_mapping(), **name}


def _device(given: object) -> Device:
    if isinstance(given, str):
        return device_named(given)
    try:
        return Device.from_mapping(given)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"device: {error}") from None


def _changed(device: Device, changes: Mapping[str, object]) -> Device:
    """The device with some of its fields otherwise."""
    if not changes:
        return device
    fields = device.to_mapping()
    for key, value in changes.items():
        before = fields.get(key)
        is_link = key in LINKS and isinstance(before, dict) and isinstance(value, Mapping)
        fields[key] = {**before, **value} if is_link else value  # type: ignore[dict-item]
    return Device.from_mapping(fields)
