"""Clusters as JSON: a device by name or by its fields, some of them otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cost import DEVICES, Cluster, Device, Link
from weft.errors import InputError, NotationError
from weft.notation import from_json, read_cluster, to_json

H100 = DEVICES["h100"]
HEADING = {"format": "weft.cluster", "version": 1}


def written(folder: Path, **members: object) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps(HEADING | members))
    return path


def test_a_device_by_name(tmp_path: Path) -> None:
    found = read_cluster(written(tmp_path, devices=64, device="h100", name="ours"))
    assert found == Cluster(devices=64, device=H100, name="ours")


def test_fields_beside_the_device_take_the_place_of_its_own(tmp_path: Path) -> None:
    changes = {"per_node": 4, "memory": 96e9, "far": {"bandwidth": 25e9}}
    found = read_cluster(written(tmp_path, devices=64, device="h100", **changes))
    far = Link(H100.far.latency, 25e9)  # of a link, only what is given
    assert found.device == replace(H100, per_node=4, memory=96e9, far=far)


def test_a_device_by_its_fields(tmp_path: Path) -> None:
    fields = {"peak": 1e12, "matmul": [{"flops": 1e9, "fraction": 0.5}]}
    found = read_cluster(written(tmp_path, devices=2, device=fields))
    assert found.device == Device.from_mapping(fields)


@pytest.mark.parametrize("device", DEVICES.values())
def test_a_cluster_comes_back(device: Device) -> None:
    cluster = Cluster(devices=3, device=device)
    assert from_json(to_json(cluster)) == cluster


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"device": "h100"}, "cluster: the key 'devices' is missing"),
        ({"devices": 8}, "cluster: the key 'device' is missing"),
        ({"devices": 0, "device": "h100"}, "devices is 0; it must be a whole number"),
        ({"devices": 8, "device": "h10"}, "no device is named 'h10'; did you mean 'h100'"),
        ({"devices": 8, "device": 3}, "device: device is 3; it must be keys and values"),
        ({"devices": 8, "device": {"peek": 1}}, "device: device: unknown key 'peek'"),
        ({"devices": 8, "device": "h100", "memry": 1}, "unknown key 'memry'; did you mean"),
        ({"devices": 8, "device": "h100", "memory": -1}, "memory is -1; it must be a number"),
        ({"devices": 8, "device": "h100", "far": 3}, "far is 3; it must be keys and values"),
        ({"devices": 8, "device": "h100", "name": 3}, "name is 3; it must be a text"),
    ],
)
def test_nonsense_is_refused_by_file_key_and_reason(
    members: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(NotationError, match=reason) as caught:
        read_cluster(written(tmp_path, **members))
    assert "cluster.json" in str(caught.value)


def test_what_is_no_cluster_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(to_json(H100))
    with pytest.raises(NotationError, match="a device, not a cluster"):
        read_cluster(path)
    path.write_text('{"format": "weft.cluster",\n "version": 1,\n "devices": 8,, }')
    with pytest.raises(NotationError, match="3: not JSON"):
        read_cluster(path)


def test_a_cluster_is_of_a_device() -> None:
    with pytest.raises(InputError, match="device must be a Device"):
        Cluster(devices=8, device="h100")  # type: ignore[arg-type]
