from __future__ import annotations

import json
import math

import pytest

from weft.cost import DEVICES, Device, Link, Point, Provenance, device_named
from weft.cost.device import efficiency
from weft.errors import InputError

TABLE = (Point(1e9, 0.2, True), Point(1e11, 0.8, True), Point(1e12, 0.9, False))


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_survives_json_and_says_where_it_stands(name: str) -> None:
    text = json.dumps(DEVICES[name].to_mapping(), allow_nan=False)
    assert Device.from_mapping(json.loads(text)) == DEVICES[name]
    assert DEVICES[name].source


@pytest.mark.parametrize(
    ("flops", "fraction", "provenance"),
    [
        (1e9, 0.2, Provenance.MEASURED),
        (1.005e11, 0.8, Provenance.MEASURED),
        (1e10, 0.4, Provenance.INTERPOLATED),  # half way in log space: the geometric mean
        (10**11.5, math.sqrt(0.72), Provenance.DERIVED),  # one of its ends was not measured
        (1e12, 0.9, Provenance.DERIVED),
        (1e8, 0.2, Provenance.DERIVED),
        (1e13, 0.9, Provenance.DERIVED),
        (0, 1.0, Provenance.DERIVED),
    ],
)
def test_efficiency(flops: float, fraction: float, provenance: Provenance) -> None:
    found, mark = efficiency(TABLE, flops)
    assert found == pytest.approx(fraction)
    assert mark is provenance


def test_without_a_table_products_run_at_the_peak() -> None:
    device = Device(peak=1e12)
    assert device.multiplying(5e12, moved=1e9) == (5.0, Provenance.DERIVED)
    assert device.attending(1e12) == (1.0, Provenance.DERIVED)


def test_a_product_takes_as_long_as_its_bytes_where_that_is_longer() -> None:
    device = Device(peak=1e12, bandwidth=1e9, matmul=TABLE)
    assert device.multiplying(1e11, moved=0) == (0.125, Provenance.MEASURED)
    assert device.multiplying(1e11, moved=1e9) == (1.0, Provenance.DERIVED)


def test_many_small_products_are_not_one_large_one() -> None:
    device = Device(peak=1e12, matmul=TABLE)
    assert device.multiplying(1e11, moved=0, count=100).seconds == pytest.approx(0.5)


def test_what_was_measured_on_the_h200() -> None:
    """bf16 products (benchmarks/costs) at 698 and 746 TFLOP/s; 55 GB/s to the host."""
    device = DEVICES["h200"]
    for size, seconds in ((4096, 2 * 4096**3 / 698e12), (8192, 2 * 8192**3 / 746.1e12)):
        estimate = device.multiplying(2.0 * size**3, moved=6.0 * size**2)
        assert estimate.seconds == pytest.approx(seconds)
        assert estimate.provenance is Provenance.MEASURED
    assert device.host == Link(bandwidth=55e9)


def test_only_the_devices_that_were_measured_say_so() -> None:
    measured = {
        name
        for name, device in DEVICES.items()
        if any(point.is_measured for point in (*device.matmul, *device.attention))
    }
    assert measured == {"h200", "cpu"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"peak": 0}, "peak is 0; it must be more"),
        ({"peak": -1.0}, "peak is -1.0; it must be a number, not negative"),
        ({"peak": math.inf}, "peak is inf"),
        ({"bandwidth": math.nan}, "bandwidth is nan"),
        ({"memory": "80GB"}, "memory is '80GB'"),
        ({"per_node": 0}, "per_node is 0"),
        ({"far": {"bandwith": 1}}, "far: unknown key 'bandwith'; did you mean 'bandwidth'"),
        ({"near": 5}, "near is 5; it must be keys and values"),
        ({"host": {"bandwidth": 0}}, "bandwidth of link host is 0"),
        ({"host": {"latency": -1}}, "latency of link host is -1"),
        ({"matmul": 0.5}, "matmul is 0.5; it must be a list of points"),
        ({"matmul": [{"flops": 1e9}]}, "matmul, point 0: the key 'fraction' is missing"),
        ({"matmul": [{"flops": 1e9, "fraction": 1.5}]}, "point 0: fraction is 1.5; 1 is the peak"),
        ({"matmul": [{"flops": 1e9, "fraction": 0}]}, "point 0: fraction is 0"),
        ({"attention": [{"flops": 1, "fraction": 1, "measured": 1}]}, "measured is 1"),
        ({"matmul": [{"flops": 1e9, "fraction": 0.5}] * 2}, "in order of their flops"),
        ({"cores": 2}, "device: unknown key 'cores'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as refusal:
        Device.from_mapping({"peak": 1e12} | change)
    assert reason in str(refusal.value)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no device is named 'h20'; did you mean 'h200'"):
        device_named("h20")
