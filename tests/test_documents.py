"""What the documents show is what happens."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.build import with_schedules
from tests.cli.running import weft
from tests.runtime.launched import printed
from weft.cost import Share
from weft.ir.kinds import Kind
from weft.lower import experts
from weft.runtime import Pipeline, Reference
from weft.schedules import REGISTRY, Schedule, Shape, one_f_one_b
from weft.simulate import simulate
from weft.verify import check

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DESIGN = (ROOT / "docs" / "design.md").read_text()


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec"), names)  # noqa: S102  our own documents
    return names


def test_the_readmes_picture_is_drawn() -> None:
    command, _, picture = _blocks(README, "console")[2].partition("\n")
    words = command.removeprefix("$ weft ").split()
    assert weft(*words, "--width", "104").stdout == picture


def test_the_readmes_first_screen_trains_a_model_and_has_figures_and_commands(
    tmp_path: Path,
) -> None:
    """The script prints what is shown, which is what the unsplit model's own losses are."""
    script, shown = _blocks(README, "python")[0], _blocks(README, "console")[0]
    places = [README.index(text) for text in ("torchrun", "| torch | Weft |", "$ make demo", "## ")]
    assert places == sorted(places)
    path = tmp_path / "train.py"
    path.write_text(script)
    first, *others = printed(4, path)
    assert first == shown.partition("\n")[2]
    assert others == [""] * 3
    _, _, plain = script.partition("torch.manual_seed(0)\n")
    names = _run(script[: script.index("dist.init")] + "torch.manual_seed(0)\n" + _unsplit(plain))
    assert [f"loss {loss:.4f}" for loss in names["losses"]] == first.split("\n")[:3]


def _unsplit(script: str) -> str:
    """The same training without a pipeline."""
    made, _, _ = script.partition("pipeline = ")
    return f"""{made}
optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-4)
losses = []
for _ in range(3):
    ids = torch.randint(512, (16, 32))
    losses.append(model(input_ids=ids, labels=ids).loss)
    losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_readmes_picture_of_1f1b_is_as_it_is_drawn_now(tmp_path: Path) -> None:
    drawn = tmp_path / "1f1b.svg"
    assert weft("draw", "1f1b", "-d", "4", "-n", "8", "-o", str(drawn)).exit_code == 0
    assert drawn.read_text() == (ROOT / "docs" / "1f1b.svg").read_text()


def test_the_readmes_python_runs() -> None:
    _, code, training = _blocks(README, "python")
    timeline = _run(code)["timeline"]
    assert timeline.makespan == 25.5
    assert timeline.bubble.wall == pytest.approx(1 / 17)
    assert timeline.bubble.span == 0
    assert timeline.peak_activations == [4.0] * 4
    result = _run(training)["result"]
    assert result.loss > 0
    assert result.timeline.is_measured


def test_the_guide_to_running_runs() -> None:
    names = _run("\n".join(_blocks((ROOT / "docs" / "running.md").read_text(), "python")))
    assert names["result"].norm > 0
    assert names["evaluation"].loss < names["result"].loss
    kinds = {Kind(int(kind)) for kind in names["offloading"].program.actions.kind}
    assert {Kind.OFFLOAD, Kind.ONLOAD} <= kinds


def test_the_guide_to_layouts_runs() -> None:
    names = _run("\n".join(_blocks((ROOT / "docs" / "layouts.md").read_text(), "python")))
    assert names["reference"].updates == 1
    assert names["compressed"].is_asynchronous is False


def test_the_guide_to_memory_runs() -> None:
    names = _run("\n".join(_blocks((ROOT / "docs" / "memory.md").read_text(), "python")))
    assert names["pipeline"].moved.away == names["pipeline"].moved.home > 0
    stages = [names["Layer"](8) for _ in range(2)]
    program = one_f_one_b(devices=2, microbatches=2)
    reference = Reference(copy.deepcopy(stages), program, loss=torch.nn.functional.mse_loss)
    marked = Pipeline(stages, program, loss=torch.nn.functional.mse_loss, offload="all")
    batch, target = torch.randn(4, 8), torch.randn(4, 8)
    assert torch.equal(marked.step(batch, target).loss, reference.step(batch, target))


def test_the_guide_to_gpus_runs_where_there_are_none(tmp_path: Path) -> None:
    """The same script on two ranks, with what names a GPU taken out."""
    code = _blocks((ROOT / "docs" / "gpus.md").read_text(), "python")[0]
    for words, instead in (
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', ""),
        ('init_process_group("nccl")', 'init_process_group("gloo")'),
        ('stages[rank].to("cuda")', "stages[1 - rank].to('meta')"),
    ):
        assert words in code
        code = code.replace(words, instead)
    script = tmp_path / "train.py"
    script.write_text(f"{code}\nprint(float(result.loss))\npipeline.close()\n")
    first, second = printed(2, script)
    assert float(first) == float(second)


def test_the_layer_in_the_guide_to_modules_runs_in_segments() -> None:
    (code,) = _blocks((ROOT / "docs" / "modules.md").read_text(), "python")
    layer = _run(code)["Layer"]
    stages = [layer(4) for _ in range(2)]
    whole, target = copy.deepcopy(stages), torch.randn(4, 4)
    program = one_f_one_b(devices=2, microbatches=2)
    pipeline = Pipeline(stages, experts(program), loss=torch.nn.functional.mse_loss)
    reference = Reference(whole, program, loss=torch.nn.functional.mse_loss)
    batch = torch.randn(4, 4)
    assert torch.equal(pipeline.step(batch, target).loss, reference.step(batch, target))
    assert (pipeline.program.actions.segment >= 0).any()


def test_the_guide_to_asynchronous_training_runs() -> None:
    names = _run("\n".join(_blocks((ROOT / "docs" / "asynchronous.md").read_text(), "python")))
    assert names["flight"].updates == 3
    assert names["pipeline"].copies == {s: 2 if s < 4 else 1 for s in range(8)}
    assert names["reference"].updates == 1


def test_the_guide_to_saves_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = _run("\n".join(_blocks((ROOT / "docs" / "saves.md").read_text(), "python")))
    assert names["second"].steps == 8
    whole = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(whole[name], one) for name, one in names["everything"]["model"].items())


def test_the_design_draws_the_program_that_it_follows() -> None:
    (shown,) = _blocks(DESIGN, "console")
    command, _, drawing = shown.partition("\n")
    words = command.removeprefix("$ weft ").split()
    assert weft(*words, "--width", "104").stdout == drawing


def test_the_design_names_every_file_of_the_runtime() -> None:
    folder = ROOT / "src" / "weft" / "runtime"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    named = set(re.findall(r"^\| `([a-z_/]+\.py)` \|", DESIGN, re.MULTILINE))
    assert named == {path for path in there if not path.endswith("__init__.py")}


def test_the_readmes_commands_are_understood() -> None:
    for line in _blocks(README, "console")[3].splitlines():
        words = line.partition("#")[0].removeprefix("$ weft ").split()
        if "-o" in words or words[0] in ("verify", "serve") or "llama/config.json" in words:
            continue
        assert weft(*words).exit_code == 0, line


def test_the_readmes_table_of_schedules_is_the_registrys() -> None:
    """`python docs/build.py` writes it."""
    assert with_schedules(README) == README
    for schedule in REGISTRY:
        assert f"| `{schedule.name}`" in README


def test_the_schedule_in_contributing_works() -> None:
    (code,) = _blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    newest_first: Schedule = _run(code)["newest_first"]
    shape = Shape(devices=4, microbatches=6)
    program = newest_first.program(shape)
    check(program)
    timeline = simulate(program)
    assert timeline.makespan == newest_first.claims.seconds(shape, Share())
    peaks = [newest_first.claims.peak(shape, device) for device in range(4)]
    assert timeline.peak_activations == peaks
    assert len(code.splitlines()) < 50


def test_contributing_names_places_that_are_there() -> None:
    """Where a kind of action is entered: files, and what to look for in them."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a kind of action")[2]
    found = re.findall(r"`((?:src|tests)/[a-z_/]+\.py)`: ((?:`[^`]+`(?:, )?)+)", table)
    assert len(found) >= 12
    for path, names in found:
        text = (ROOT / path).read_text()
        for name in re.findall(r"`([^`]+)`", names):
            assert re.search(rf"\b{name}\b", text), f"{name} in {path}"


def test_the_notation_page_shows_what_is_exported() -> None:
    page = (ROOT / "docs" / "notation.md").read_text()
    assert _blocks(page, "")[0] == weft("export", "1f1b", "-d", "2", "-n", "2").stdout


def test_the_decision_on_paired_ends_states_what_is_simulated() -> None:
    page = (ROOT / "docs" / "decisions" / "paired-ends.md").read_text()

    def times(variants: tuple[str, ...], share: Share, **shape: int) -> list[str]:
        programs = [REGISTRY["kimi-k2"](variant=variant, **shape) for variant in variants]
        return [f"{simulate(p, share.cost(p)).makespan:g}" for p in programs]

    small = {"devices": 4, "microbatches": 8, "stages_per_device": 2}
    large = {"devices": 16, "microbatches": 128, "stages_per_device": 4}
    ends = ("", "paired-ends")
    for share, shape in ((Share(3, 3, 2, pair=6), small), (Share(6, 6, 4, pair=12), large)):
        unpaired, paired = times(ends, share, **shape)
        assert f"| {unpaired} | **{paired}** |" in page
    assert times(("send-after-w",), Share(3, 2.5, 2.5, pair=6), **small) == ["65"]
    assert "| 65 | 65 | 57 |" in page
