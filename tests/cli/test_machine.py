"""A model on a device as costs: seconds, bytes, and how they are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from weft.cost import DEVICES, MODELS, Layout, Storage, derive, flops
from weft.notation import from_json, to_json
from weft.schedules import dualpipe, one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline

GPT = ("--model", "gpt-6.2b", "--device", "a100")
STEP = ("1f1b", "-d", "8", "-n", "24", *GPT)
TOO_LARGE = ("1f1b", "-d", "4", "-n", "8", "--model", "gpt-28.3b", "--device", "a100")


def makespan(*words: str) -> float:
    return float(weft_json("simulate", "1f1b", "-d", "8", "-n", "24", *words)["makespan"])


# figures


def test_the_figures_are_those_of_the_derived_cost() -> None:
    program = one_f_one_b(devices=8, microbatches=24)
    timeline = simulate(program, derive(program, MODELS["gpt-6.2b"], DEVICES["a100"]))
    figures = weft_json("simulate", *STEP)
    assert figures["makespan"] == timeline.makespan
    assert figures["memory"]["peak"] == timeline.memory.peaks
    assert figures["memory"]["capacity"] == 80e9
    assert figures["provenance"] == {"derived": 1.0}


def test_speed_is_tokens_and_flops_of_the_whole_machine() -> None:
    model, figures = MODELS["gpt-6.2b"], weft_json("simulate", *STEP)
    work = 24 * flops(model)
    assert figures["speed"] == {
        "devices": 8,
        "tokens_per_second": pytest.approx(24 * 3 * 1024 / figures["makespan"]),
        "mfu": pytest.approx(work / figures["makespan"] / (8 * 312e12)),
    }


def test_devices_that_share_a_stage_feed_microbatches_of_their_own() -> None:
    words = ("dualpipe", "-d", "16", "-n", "32", "--model", "deepseek-v3", "--device", "h800")
    figures = weft_json("simulate", *words, "--expert-parallel", "64", "--data-parallel", "2")
    program = dualpipe(devices=16, microbatches=32)
    layout = Layout(experts=64, replicas=2)
    cost = derive(program, MODELS["deepseek-v3"], DEVICES["h800"], layout)
    seconds = simulate(program, cost).makespan
    assert figures["speed"]["devices"] == 2048
    assert figures["speed"]["tokens_per_second"] == pytest.approx(128 * 32 * 4096 / seconds)
    assert 0.3 < figures["speed"]["mfu"] < 0.7


def test_the_speed_of_an_asynchronous_run_is_that_of_its_steady_state() -> None:
    figures = weft_json("simulate", "pipedream-2bw", "-d", "4", "-n", "8", *GPT)
    tokens = 8 * 3 * 1024 / figures["steady"]["period"]
    assert figures["speed"]["tokens_per_second"] == pytest.approx(tokens)


def test_microbatches_that_a_method_cuts_up_are_smaller() -> None:
    words = ("chimera", "-d", "8", "-n", "16", *GPT)
    whole, halves = (
        weft_json("simulate", *words),
        weft_json("simulate", *words, "--variant", "halving"),
    )
    for key in ("tokens_per_second", "mfu"):
        work = [figures["speed"][key] * figures["makespan"] for figures in (whole, halves)]
        assert work[0] == pytest.approx(work[1])
    assert halves["makespan"] < whole["makespan"]


def test_unit_costs_have_no_speed() -> None:
    figures = weft_json("simulate", "1f1b")
    assert "speed" not in figures
    assert figures["provenance"] == {"given": 1.0}


def test_what_was_measured_makes_an_estimate() -> None:
    words = ("1f1b", "-d", "4", "-n", "8", "--model", "gpt-cpu", "--device", "cpu")
    shares = weft_json("simulate", *words)["provenance"]
    assert set(shares) == {"interpolated", "derived"}
    assert sum(shares.values()) == pytest.approx(1)
    (line,) = (
        line for line in weft("simulate", *words).stdout.splitlines() if line.startswith("seconds")
    )
    shown = (100 * shares["interpolated"], 100 * shares["derived"])
    assert line.split(maxsplit=2)[1:] == [
        "estimate",
        f"{shown[0]:.1f}% interpolated, {shown[1]:.1f}% derived",
    ]


# options


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--microbatch-size 6", {"microbatch": 6}),
        ("--sequence 2048", {"sequence": 2048}),
        ("--sequence 512 --microbatch-size 1", {"sequence": 512, "microbatch": 1}),
    ],
)
def test_sizes_change_the_model(words: str, changes: dict[str, int]) -> None:
    program = one_f_one_b(devices=8, microbatches=24)
    model = replace(MODELS["gpt-6.2b"], **changes)  # type: ignore[arg-type]
    expected = simulate(program, derive(program, model, DEVICES["a100"])).makespan
    assert makespan(*GPT, *words.split()) == expected


def test_layers_of_each_stage() -> None:
    program = one_f_one_b(devices=8, microbatches=24)
    layers = (3, 4, 4, 4, 4, 4, 4, 3)
    cost = derive(program, MODELS["gpt-6.2b"], DEVICES["a100"], Layout(layers=layers))
    assert makespan(*GPT, "--layers", "3,4,4,4,4,4,4,3") == simulate(program, cost).makespan


def test_state_bytes_are_of_weights_gradients_and_optimizer() -> None:
    program = one_f_one_b(devices=8, microbatches=24)
    storage = Storage(weights=4, gradients=2, optimizer=0)
    cost = derive(program, MODELS["gpt-6.2b"], DEVICES["a100"], storage=storage)
    figures = weft_json("simulate", *STEP, "--state-bytes", "4,2,0")
    assert figures["memory"]["peak"] == simulate(program, cost).memory.peaks


def test_models_and_devices_come_from_files(tmp_path: Path) -> None:
    model, device = tmp_path / "model.json", tmp_path / "device"
    model.write_text(to_json(MODELS["gpt-6.2b"]))
    device.write_text(to_json(DEVICES["a100"]))
    assert makespan("--model", str(model), "--device", str(device)) == makespan(*GPT)


def test_a_timeline_with_derived_costs_reads_back() -> None:
    exported = weft("export", *STEP, "--format", "timeline-json").stdout
    timeline = from_json(exported)
    assert isinstance(timeline, Timeline)
    assert timeline.makespan == makespan(*GPT)
    assert timeline.cost.provenance


# refusals


@pytest.mark.parametrize("command", ["draw", "simulate", "verify", "export", "compare"])
@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("--model gpt-6.2b", "--model needs --device"),
        ("--device a100", "--device needs --model"),
        ("--sequence 1024", "--sequence describes a model on a device; give --model and --device"),
        ("--expert-parallel 2", "--expert-parallel describes a model on a device"),
        ("--model gpt-6.3b --device a100", "no model or file is named 'gpt-6.3b'; did you mean"),
        ("--model gpt-6.2b --device a1000", "did you mean 'a100'?"),
        ("--model nowhere.json --device a100", "nowhere.json: cannot be read"),
        ("--model gpt-6.2b --device no/where", "no/where: cannot be read"),
        ("--model gpt-6.2b --device a100 --latency 1", "leave out --latency"),
        ("--model gpt-6.2b --device a100 --forward 1 --pair 2", "leave out --forward and --pair"),
        ("--model gpt-6.2b --device a100 --cost cost.json", "leave out --cost"),
        (
            "--model gpt-6.2b --device a100 --layers 3,x",
            "'3,x' is not a list of at most 65,536 numbers, like 3,4,4,3",
        ),
        ("--model gpt-6.2b --device a100 --layers 10,-1", "'10,-1' is not a list of"),
        ("--model gpt-6.2b --device a100 --state-bytes 2,4", "--state-bytes has 2 numbers"),
        ("--model gpt-6.2b --device a100 --state-bytes 2,4,nan", "'2,4,nan' is not a list of"),
        ("--model gpt-6.2b --device a100 --microbatch-size 0", "0 is not a whole number from 1 to"),
        (
            "--model gpt-6.2b --device a100 --sequence 9999999999",
            "9999999999 is not a whole number from 1 to 1,000,000,000",
        ),
        ("--model gpt-6.2b --device a100 --layers 10,20", "layers: 2 counts for 4 stages"),
        ("--model gpt-6.2b --device a100 --expert-parallel 2", "the model has no experts"),
        ("--model gpt-6.2b --device a100 -d 31", "30 layers do not fill 31 stages"),
        ("--model gpt-6.2b --device a100 --graph inception", "this graph branches"),
    ],
)
def test_what_makes_no_sense_is_refused(command: str, words: str, fragment: str) -> None:
    refused(weft(command, "1f1b", *words.split()), fragment)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"layers": -1}, "layers is -1"),
        ({"layres": 1}, "unknown key 'layres'; did you mean 'layers'?"),
        ({"format": "weft.cost"}, "'layers' is not a key here"),
        ({"source": "\x1b[2J" * 99, "hidden": 1 << 80}, "hidden is 1208925819614629174706176"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    change: dict[str, object], fragment: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**json.loads(to_json(MODELS["gpt-3"])), **change}))
    words = ("--model", str(path), "--device", "a100")
    refused(weft("simulate", "1f1b", *words), "model.json: ", fragment)


# memory


@pytest.mark.parametrize("command", ["simulate", "draw"])
def test_what_does_not_fit_is_reported_and_shown(command: str) -> None:
    result = weft(command, *TOO_LARGE)
    assert result.exit_code == 0
    assert result.stdout.startswith("1f1b: 4 devices, 8 microbatches")
    assert result.stderr.startswith(
        "weft: warning: 1f1b needs more than the 74.51 GiB of memory that a device has: device 0 by"
    )
    assert result.stderr.count("\n") == 1


def test_many_devices_that_do_not_fit_are_counted() -> None:
    words = ("-d", "16", "-n", "16", "--model", "gpt-1008b", "--device", "a100")
    assert weft("draw", "1f1b", *words).stderr.endswith(
        "GiB, 13 more devices. `weft explain` says what fits.\n"
    )


def test_verify_refuses_what_does_not_fit() -> None:
    result = weft("verify", *TOO_LARGE)
    assert result.exit_code == 1
    assert "device 0 needs" in result.stdout
    assert weft("verify", *STEP).exit_code == 0
    assert weft("verify", *TOO_LARGE, "--memory", "1e15").exit_code == 0


def test_what_fits_is_no_warning() -> None:
    assert weft("simulate", *STEP).stderr == ""


# for people


def test_a_report_in_seconds_and_bytes() -> None:
    lines = weft("simulate", *STEP).stdout.splitlines()
    for line in (
        "time           1.599 s   from the first start to the last end",
        "seconds        bound     100.0% derived: the best that the device can do",
        "left out       11.85 ms  the update of the slowest device, not in the program",
        "tokens/s       46,123    on 8 devices",
        "MFU            69.8%     FLOPs of the model, of what all devices can do",
        "memory         24 GiB    the most that a device holds, of 74.51 GiB",
        "in s and GiB:",
    ):
        assert line in lines


def test_a_picture_in_milliseconds() -> None:
    words = ("--model", "gpt-6.2b", "--device", "h100")
    picture = weft("draw", "1f1b", "-d", "4", "-n", "8", *words).stdout
    *_, axis, figures, _ = picture.splitlines()
    ticks = [tick.strip() for tick in axis.split("|")[1:]]
    assert ticks == ["0", "100 ms", "200 ms", "300 ms", "400 ms"]
    assert re.match(r"time \d+\.\d ms   bubble wall", figures)
    assert re.search(r"memory 36\.32 GiB$", figures)


def test_a_comparison_in_seconds_and_bytes() -> None:
    words = ("compare", "1f1b", "zbv", "gpipe", "-d", "4", "-n", "16")
    table = weft(*words, "--model", "gpt-6.2b", "--device", "h100").stdout
    head, first, *_, last = table.partition("\n\n")[0].splitlines()
    assert "time, s   wall   span    MFU  peak  memory, GiB  fits  copies" in head
    assert re.search(r"zbv .* [56]\d\.\d% +4 +39  yes ", first)
    assert re.search(r"gpipe .* 16 +75  no ", last)


def test_in_a_comparison_what_does_not_fit_comes_last() -> None:
    words = ("compare", "1f1b", "eager-1f1b", "looped-bfs", "-d", "8", "-n", "64", *GPT)
    rows = weft_json(*words, "--microbatch-size", "6")["rows"]
    assert [(row["name"], row["relief"]) for row in rows] == [
        ("eager-1f1b", ""),
        ("1f1b", ""),
        ("looped-bfs", "--recompute all"),
        ("looped-bfs", ""),
    ]
    assert rows[3]["makespan"] < rows[0]["makespan"]
    assert max(rows[3]["memory"]["peak"]) > 80e9


def test_layouts_are_asked_for_by_flags() -> None:
    words = ("simulate", "1f1b", "-d", "2", "-n", "8", "--model", "llama-3-8b", "--device", "h100")
    layout = ("--tensor-parallel", "4", "--data-parallel", "2")
    step = weft(*words, *layout, "--no-shard-optimizer", "--steps", "1").stdout
    assert "on 16 devices" in step
    assert "1 REDUCE, 1 UPDATE" in step
    assert "left out" not in step
    assert "1 GATHER" in weft(*words, *layout, "--shard-optimizer", "--steps", "1").stdout
    usual, selective = (
        json.loads(weft(*words, *more, "--json").stdout)
        for more in (layout, (*layout, "--recompute", "selective"))
    )
    assert max(selective["memory"]["peak"]) < max(usual["memory"]["peak"])


def test_a_layout_that_does_not_fit_the_model_says_so() -> None:
    words = ("--model", "llama-3-8b", "--device", "h100", "--tensor-parallel", "3")
    result = weft("simulate", "1f1b", *words)
    assert result.exit_code == 2
    assert "heads 32 cannot be split over 3 processors" in result.stderr
