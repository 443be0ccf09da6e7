"""Hugging Face models in stages compute what transformers computes with the whole model."""

from __future__ import annotations

import copy
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from tests.runtime.exactness import differences
from tests.runtime.launched import printed
from tests.runtime.models import adam, is_same
from tests.runtime.plain import Plain, apart, is_near
from tests.runtime.split.families import (
    FAMILIES,
    GPT2,
    LENGTH,
    SIZE,
    WORDS,
    gradients,
    model_of,
    new,
    sentences,
)
from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference, split
from weft.runtime.split.huggingface import loss_of
from weft.schedules import chimera, gpipe, interleaved_1f1b, one_f_one_b, pipedream_2bw, zbv

EXAMPLE = Path(__file__).parents[3] / "examples" / "huggingface.py"
TWO_VERSIONS = pipedream_2bw(devices=2, microbatches=2, updates=6)
EQUAL = ["gpt2", "qwen2", "mixtral-balanced", "bert-classes", "falcon"]
LEARNED = [family for family in FAMILIES if family != "mixtral-balanced"]


def stepped(model: Any, program: Program, batch: Any, labels: Tensor) -> tuple[Any, Any]:
    """The stages of a model after a step without an update, and the loss."""
    stages = split(model, stages=program.stages)
    return stages, Pipeline(stages, program).step(batch, labels).loss


@pytest.mark.parametrize("family", LEARNED)
def test_loss_and_gradients_are_those_of_the_whole_batch(family: str) -> None:
    model, (batch, labels) = model_of(family), sentences(family)
    plain = copy.deepcopy(model)
    stages, loss = stepped(model, one_f_one_b(devices=4, microbatches=4), batch, labels)
    wanted = plain(**batch, labels=labels).loss
    wanted.backward()
    assert torch.allclose(loss, wanted, rtol=1e-5)
    found = gradients([*stages])
    assert found.keys() == gradients([plain]).keys()
    for name, gradient in gradients([plain]).items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("family", EQUAL)
def test_one_microbatch_without_a_mask_is_equal_bit_for_bit(family: str) -> None:
    model, (batch, labels) = model_of(family), sentences(family)
    plain = copy.deepcopy(model)
    stages, loss = stepped(
        model, one_f_one_b(devices=2, microbatches=1), batch["input_ids"], labels
    )
    wanted = plain(batch["input_ids"], labels=labels).loss
    wanted.backward()
    assert torch.equal(loss, wanted)
    found = gradients([*stages])
    for name, gradient in gradients([plain]).items():
        assert is_same(found[name], gradient), name


def test_auxiliary_losses_are_those_of_each_microbatch() -> None:
    """As where gradients of several batches are accumulated: a balance is no sum over rows."""
    model, (batch, labels) = model_of("mixtral-balanced"), sentences("mixtral-balanced")
    plain, stages = copy.deepcopy(model), split(model, stages=4)
    labels = batch["input_ids"]  # of each microbatch as many are valid
    pipeline = Pipeline(stages, one_f_one_b(devices=4, microbatches=4))
    loss = pipeline.step(batch, labels).loss
    total = torch.zeros(())
    for ids, mask in zip(*(one.chunk(4) for one in batch.values()), strict=True):
        part = plain(ids, attention_mask=mask, labels=ids).loss / 4
        part.backward()
        total += part.detach()
    assert torch.allclose(loss, total, rtol=1e-5)
    found = gradients([*stages])
    for name, gradient in gradients([plain]).items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name
    main, extra = stages.loss(plain(**batch), labels)  # type: ignore[misc]
    assert torch.equal(main + extra, plain(**batch, labels=labels).loss)


# what the last stage returns, and evaluation


def test_predictions_are_logits_and_evaluation_drops_nothing() -> None:
    model, (batch, labels) = model_of("gpt2", is_dropping=True), sentences("gpt2")
    plain, stages = copy.deepcopy(model).eval(), split(model, stages=2)
    pipeline = Pipeline(stages, gpipe(devices=2, microbatches=4))
    loss = pipeline.evaluate(batch, labels).loss
    with torch.no_grad():
        out = plain(**batch, labels=labels)
    assert torch.allclose(pipeline.predict(batch), out.logits, atol=1e-6)
    assert torch.allclose(loss, out.loss, rtol=1e-5)
    assert model.training
    assert stages[0].training


def test_a_batch_may_be_named_or_in_the_order_of_the_arguments() -> None:
    losses = []
    batch, labels = sentences("bert-classes")
    kinds = torch.zeros_like(batch["input_ids"])
    for given in (batch, (*batch.values(),), {**batch, "token_type_ids": kinds, "labels": labels}):
        stages = split(model_of("bert-classes"), stages=2)
        pipeline = Pipeline(stages, gpipe(devices=2, microbatches=2))
        losses.append(float(pipeline.step(given, labels).loss))
    assert losses == [losses[0]] * 3


def test_a_base_model_returns_what_it_has_by_name() -> None:
    model = new("BertModel", SIZE).eval()
    plain, seen = copy.deepcopy(model), []
    batch, labels = sentences("bert-classes")

    def noted(output: dict[str, Tensor], _: Tensor) -> Tensor:
        seen.append(output)
        return output["pooler_output"].sum()

    stages = split(model, stages=4)
    assert stages.loss is None
    Pipeline(stages, gpipe(devices=4, microbatches=1), loss=noted).evaluate(batch, labels)
    wanted = plain(**batch)
    assert torch.equal(seen[0]["last_hidden_state"], wanted.last_hidden_state)
    assert torch.equal(seen[0]["pooler_output"], wanted.pooler_output)


# dropout, schedules, ranks


PROGRAMS = [
    ("gpt2", zbv(devices=2, microbatches=4)),
    ("gpt2", chimera(devices=4, microbatches=4)),
    ("bert-masked", interleaved_1f1b(devices=2, microbatches=4, stages_per_device=2)),
]


@pytest.mark.parametrize(("family", "program"), PROGRAMS, ids=lambda one: getattr(one, "name", one))
def test_any_schedule_is_exact_with_dropout_and_tied_weights(family: str, program: Program) -> None:
    stages = split(model_of(family, is_dropping=True), stages=4)
    data = [sentences(family, rows) for rows in (8, 12)]
    assert differences(stages, program, data, loss=stages.loss, clip=0.5) == []


def test_versions_of_the_weights_are_exact_with_dropout_and_tied_weights() -> None:
    stages, program = split(model_of("gpt2", is_dropping=True), stages=2), TWO_VERSIONS
    copies = copy.deepcopy(stages)
    pipeline = Pipeline(stages, program, optimizer=adam)
    reference = Reference(copies, program, optimizer=adam)
    for _ in range(3):
        assert torch.equal(
            pipeline.step(*sentences("gpt2")).loss, reference.step(*sentences("gpt2"))
        )
    pipeline.drain()
    for one, other in zip(stages, copies, strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("family", ["gpt2", "bert-classes"])
def test_what_is_dropped_does_not_depend_on_the_cut(family: str) -> None:
    """Masks are those of the whole model under the same keys."""
    model = model_of(family, is_dropping=True).double()
    whole, (batch, labels) = copy.deepcopy(model), sentences(family)
    labels = labels if family == "bert-classes" else batch["input_ids"]
    stages = split(model, stages=4, layers=[1, 1, 1, 1])
    own: Any = stages.loss
    plain = Plain(whole, microbatches=2, loss=lambda out, wanted: own(out.logits, wanted))
    pipeline = Pipeline(stages, one_f_one_b(devices=4, microbatches=2))
    loss = pipeline.step(batch["input_ids"], labels).loss
    assert is_near(loss.double(), plain.step(batch["input_ids"], labels))
    assert apart(stages, whole) == []


def printed_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What the example prints in this process, which has transformers already."""
    before, sys.argv = sys.argv, [str(EXAMPLE), *arguments]
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        sys.argv = before
    return capsys.readouterr().out.splitlines()


def test_the_page_on_models_runs() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    code = page.split("## Hugging Face")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec"), names)  # noqa: S102  our own document
    tied = names["model"]
    assert torch.equal(tied.lm_head.weight, tied.transformer.wte.weight)


def test_the_example_trains_a_model_from_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [float(line.split()[-1]) for line in printed_here(capsys)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def test_the_example_trains_a_checkpoint_in_ranks_as_in_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With tied weights, and with routers, so that shapes travel with the messages."""
    model_of("mixtral", tie_word_embeddings=True).save_pretrained(tmp_path)
    alone = printed_here(capsys, str(tmp_path))
    first, second = printed(2, EXAMPLE, str(tmp_path))
    assert first.splitlines() == alone
    assert second == ""
    assert len(alone) == 5


# as people use models


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gradient_checkpointing_and_each_attention(attention: str) -> None:
    model = model_of("llama", is_dropping=True, attention_dropout=0.2)
    model.set_attn_implementation(attention)
    plain, (batch, labels) = copy.deepcopy(model), sentences("llama")
    model.gradient_checkpointing_enable()
    losses = []
    for one in (model, plain):
        stages = split(one, stages=2)
        pipeline = Pipeline(stages, one_f_one_b(devices=2, microbatches=2))
        losses.append(pipeline.step(batch, labels).loss)
    assert is_same(*losses)
    assert gradients([model]).keys() == gradients([plain]).keys()
    assert all(map(is_same, gradients([model]).values(), gradients([plain]).values()))


def test_the_model_has_what_was_trained(tmp_path: Path) -> None:
    """In one process its own modules are trained, both ends of a tied weight; it can be saved."""
    model, (batch, labels) = model_of("gpt2"), sentences("gpt2")
    before = copy.deepcopy(model.state_dict())
    pipeline = Pipeline(
        split(model, stages=2), one_f_one_b(devices=2, microbatches=2), optimizer=adam
    )
    pipeline.step(batch, labels)
    assert not torch.equal(
        before["transformer.h.3.mlp.c_fc.weight"], model.transformer.h[3].mlp.c_fc.weight
    )
    assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)
    model.save_pretrained(tmp_path)
    loaded: Any = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.eval()(**batch).logits, model.eval()(**batch).logits)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "bert-masked"])
def test_pieces_of_a_model_on_meta_are_set_as_the_model_sets_them(family: str) -> None:
    with torch.device("meta"):
        empty = model_of(family)
    stages, whole = split(empty, stages=2), model_of(family)
    assert stages.init is not None
    for stage in stages:
        assert all(tensor.is_meta for tensor in (*stage.parameters(), *stage.buffers()))
        stage.to_empty(device="cpu")
        for weight in stage.parameters():
            nn.init.constant_(weight, float("nan"))
        stage.apply(stages.init)  # type: ignore[arg-type]
    wanted = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    found: dict[str, Tensor] = {}
    for stage in stages:
        found |= {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
    assert wanted.keys() <= found.keys()
    for name, tensor in found.items():
        if name in wanted and (tensor.dim() < 2 or not tensor.requires_grad):
            assert torch.equal(tensor, wanted[name]), name  # ones, zeros, tables
        elif name in wanted:
            assert 0.7 < tensor.detach().std() / wanted[name].detach().std() < 1.4, name


def test_names_are_those_of_the_model() -> None:
    model = model_of("qwen3", tie_word_embeddings=False)
    stages = split(model, stages=3, layers=[1, 2, 1])
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert all(name.startswith("model.layers.") for name, _ in stages[1].named_parameters())
    assert isinstance(stages[2].get_submodule("model.layers.3"), type(model.model.layers[3]))


# refusals


def hooked() -> Any:
    model = model_of("llama")
    model.model.register_forward_hook(lambda *_: None)
    return model


T5 = {"num_layers": 2, "d_model": 16, "vocab_size": WORDS}
REFUSED: dict[str, Callable[[], Any]] = {
    "encoder and a decoder": lambda: new("T5ForConditionalGeneration", T5),
    "no lists of 4 layers": lambda: new("AlbertForMaskedLM", SIZE),
    "module model of LlamaForCausalLM has hooks": hooked,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_chain_of_layers_is_refused(why: str) -> None:
    with pytest.raises(InputError, match=why):
        split(REFUSED[why](), stages=2)


def test_numbers_of_layers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"layers \[1, 2\] do not cut 4 layers into 2 stages"):
        split(model_of("llama"), stages=2, layers=[1, 2])


class Reminded(transformers.LlamaModel):  # type: ignore[misc]
    """Adds what its first layer gave after its last one, past all stages between."""

    def forward(self, input_ids: Any, **_: Any) -> Any:
        hidden = self.embed_tokens(input_ids)
        tables = self.rotary_emb(hidden, torch.arange(input_ids.shape[1])[None])
        found = []
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=tables)
            found.append(hidden)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden + found[0]))


def test_pieces_are_compared_with_the_model_on_an_example() -> None:
    batch, _ = sentences("mixtral-balanced")
    balanced = model_of("mixtral-balanced", is_dropping=True)
    assert split(balanced, stages=2, example=batch).checked == "by value"
    assert balanced.config.output_router_logits
    strange = model_of("llama")
    strange.model.__class__ = Reminded
    split(strange, stages=2)
    with pytest.raises(InputError, match="do not compute what the model does"):
        split(strange, stages=2, example=batch)


def test_a_model_that_uses_a_weight_elsewhere_is_refused() -> None:
    """OPT has its last norm ahead of its layers."""
    config = {"num_hidden_layers": 2, "hidden_size": 16, "ffn_dim": 32, "num_attention_heads": 2}
    config |= {"vocab_size": WORDS, "word_embed_proj_dim": 16, "max_position_embeddings": 32}
    model = new("OPTForCausalLM", config)
    with pytest.raises(InputError, match="final_layer_norm after its layers"):
        split(model, stages=2)
    pipeline = Pipeline(split(model, stages=2, check=False), gpipe(devices=2, microbatches=1))
    ids = torch.ones(2, LENGTH, dtype=torch.long)
    with pytest.raises(InputError, match="final_layer_norm after its layers"):
        pipeline.step(ids, ids)


def test_a_loss_has_to_come_from_somewhere() -> None:
    with pytest.raises(InputError, match="give loss="):
        Pipeline([nn.Linear(2, 2)], gpipe(devices=1, microbatches=1))
    with pytest.raises(InputError, match="give loss="):
        Reference([nn.Linear(2, 2)], gpipe(devices=1, microbatches=1))
    assert loss_of(new("GPT2Model", GPT2)) is None


HEADS: list[tuple[str, dict[str, Any], Tensor, int]] = [  # and the labels of two sentences
    ("BertForTokenClassification", {"num_labels": 3}, torch.tensor([[0, 2], [1, -100]]), 3),
    ("BertForSequenceClassification", {"num_labels": 1}, torch.tensor([0.5, -1.0]), 2),
    ("BertForSequenceClassification", {"num_labels": 2}, torch.tensor([[0.0, 1.0], [1.0, 1.0]]), 4),
]


@pytest.mark.parametrize(("kind", "settings", "labels", "count"), HEADS)
def test_the_loss_of_a_head_is_the_models(
    kind: str, settings: dict[str, Any], labels: Tensor, count: int
) -> None:
    model = new(kind, {**SIZE, **settings}).eval()
    ids = torch.tensor([[1, 2], [3, 4]])
    own: Any = loss_of(model)
    assert torch.equal(own(model(ids).logits, labels), model(ids, labels=labels).loss)
    assert own.count(labels) == count


def test_valid_labels_are_counted() -> None:
    labels = torch.tensor([[5, 1, -100], [-100, 2, 3]])
    causal: Any = loss_of(model_of("llama"))
    masked: Any = loss_of(model_of("bert-masked"))
    assert (causal.count(labels), masked.count(labels)) == (3, 4)


def test_the_loss_of_routers_over_the_whole_batch_is_that_of_the_unsplit_one() -> None:
    model = model_of("mixtral-balanced")
    whole = copy.deepcopy(model)
    batch, labels = sentences("mixtral-balanced")
    program = gpipe(devices=2, microbatches=4)
    pipeline = Pipeline(split(model, stages=2), program, whole_batch=True)
    result = pipeline.step(batch, labels)
    out = whole(**batch, labels=labels)
    out.loss.backward()
    torch.testing.assert_close(result.loss, out.loss.detach())
    for (name, mine), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name)


def test_compiled_layers_train_as_others() -> None:
    """With a backend that has the same bits."""
    losses = []
    for is_compiled in (False, True):
        model = model_of("llama")
        for layer in model.model.layers if is_compiled else ():
            layer.compile(backend="aot_eager")
        batch, labels = sentences("llama")
        pipeline = Pipeline(split(model, stages=4), zbv(devices=2, microbatches=4), optimizer=adam)
        losses.append([float(pipeline.step(batch, labels).loss) for _ in range(2)])
    assert losses[0] == losses[1]
