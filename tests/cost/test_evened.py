from dataclasses import replace

from tests.verify import programs
from weft.cost import Link, Share, evened
from weft.lower import executable, groups_of, one_wire


def test_noise_takes_no_exchange_apart() -> None:
    program = executable(programs.one_f_one_b(4, 8))
    plain = Share().cost(program)
    forward = (1.0, 1.03, 0.98, 1.01)
    noisy = replace(
        plain,
        times=replace(plain.times, forward=forward),
        network=replace(plain.network, default=Link(0.1)),
    )
    expected = groups_of(one_wire(program, plain), plain)
    assert max(expected[1]) == 2
    even = evened(noisy)
    assert groups_of(one_wire(program, even), even) == expected
    assert groups_of(one_wire(program, noisy), noisy) != expected


def test_stages_that_differ_stay_as_they_are() -> None:
    program = executable(programs.one_f_one_b(2, 4))
    plain = Share().cost(program)
    uneven = replace(plain, times=replace(plain.times, forward=(1.0, 2.0)))
    found = evened(uneven)
    assert found is not None
    assert found.times == uneven.times
    assert evened(None) is None
