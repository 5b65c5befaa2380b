"""Models that pool against Transformers: hidden states, embeddings, class scores."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextForSequenceClassification,
    Gemma3TextModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2Model,
    GteConfig,
    GteForSequenceClassification,
    GteModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
    NomicBertConfig,
    NomicBertForSequenceClassification,
    NomicBertModel,
    OPTConfig,
    OPTForSequenceClassification,
    OPTModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from baton_core.errors import BatonError, InvalidConfigError, InvalidModelError, InvalidRequestError
from baton_core.requests.pooling import PoolingSpec, PoolingTask
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.pooling.settings import PoolingSettings, default_runner
from baton_kernels.selection import select_invariant_kernels
from tests.models import change_config, make_prompt
from tests.pooling import CLASSIFY, EMBED, EnginePooler, make_pooling_model

pytestmark = pytest.mark.slow

PROMPTS = [make_prompt(length, seed=length) for length in (5, 45, 1, 100)]
MODERN = {"local_attention": 20, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0} | {
    "cls_token_id": 0,
    "sep_token_id": 0,
}
QWEN = {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertConfig, BertModel, {}),
    "roberta": (RobertaConfig, RobertaModel, {"type_vocab_size": 1}),
    "modernbert": (ModernBertConfig, ModernBertModel, MODERN),
    "nomic-bert": (NomicBertConfig, NomicBertModel, {}),
    "gte": (GteConfig, GteModel, {"type_vocab_size": 0}),
    "gte-score": (GteConfig, GteForSequenceClassification, {"num_labels": 1}),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3TextModel,
        {**QWEN, "use_bidirectional_attention": True, "sliding_window": 20, "sliding_window_pattern": 2},
    ),
    "qwen3": (Qwen3Config, Qwen3Model, QWEN),
    "bert-3-classes": (BertConfig, BertForSequenceClassification, {"num_labels": 3}),
    "bert-score": (BertConfig, BertForSequenceClassification, {"num_labels": 1}),
    "roberta-score": (RobertaConfig, RobertaForSequenceClassification, {"num_labels": 1}),
    "modernbert-3-classes": (
        ModernBertConfig,
        ModernBertForSequenceClassification,
        {**MODERN, "num_labels": 3, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    ),
    "nomic-bert-score": (NomicBertConfig, NomicBertForSequenceClassification, {"num_labels": 1}),
    "qwen3-3-classes": (Qwen3Config, Qwen3ForSequenceClassification, {**QWEN, "num_labels": 3}),
    "gemma3-score": (Gemma3TextConfig, Gemma3TextForSequenceClassification, {**QWEN, "num_labels": 1}),
    "gpt2": (GPT2Config, GPT2Model, {"n_inner": 96}),
    "gpt2-score": (GPT2Config, GPT2ForSequenceClassification, {"pad_token_id": 0, "num_labels": 1}),
    "opt": (OPTConfig, OPTModel, {"ffn_dim": 96, "word_embed_proj_dim": 48}),
    "opt-3-classes": (OPTConfig, OPTForSequenceClassification, {"ffn_dim": 96, "num_labels": 3}),
    "bert-tokens": (BertConfig, BertForTokenClassification, {"num_labels": 4}),
    "roberta-tokens": (RobertaConfig, RobertaForTokenClassification, {"num_labels": 4}),
    "modernbert-tokens": (ModernBertConfig, ModernBertForTokenClassification, {**MODERN, "num_labels": 4}),
}
Written = tuple[Path, PreTrainedModel]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """Return a model's folder, to be read only, and the model as Transformers has it."""

    @cache
    def write(name: str) -> Written:
        config, model, values = MODELS[name]
        folder = tmp_path_factory.mktemp("pooling") / name
        return folder, make_pooling_model(folder, config, model, **values)

    return write


@torch.no_grad()
def reference(model: PreTrainedModel, prompt: list[int], token_types: Tensor | None = None) -> Tensor:
    """Return the hidden states of one prompt, or the logits of a model that has some."""
    given = {} if token_types is None else {"token_type_ids": token_types[None]}
    out = model(input_ids=torch.tensor([prompt]), **given)
    found: Tensor = out.logits if "logits" in out else out.last_hidden_state
    return found[0]


def close(found: Sequence[Tensor], expected: Sequence[Tensor], atol: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "nomic-bert", "gte", "gemma3"])
def test_hidden_states_of_encoders_equal_those_of_transformers(
    name: str, written: Callable[[str], Written]
) -> None:
    folder, model = written(name)
    engine, types = EnginePooler(folder), None
    if engine.plan.model.has_token_types:
        types = [(torch.arange(len(prompt)) >= 3).long() for prompt in PROMPTS]
    assert (types is not None) == (name in ("bert", "nomic-bert"))
    assert not engine.plan.model.is_causal
    found = engine.hidden(PROMPTS, None if types is None else torch.cat(types))
    expected = map(partial(reference, model), PROMPTS, types or [None] * len(PROMPTS))
    close(found, list(expected))


def test_norms_under_the_names_of_tensorflow_are_read(
    tmp_path: Path, written: Callable[[str], Written]
) -> None:
    source, model = written("bert")
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {
        name.removesuffix(end) + older.get(end, end): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        for end in [".".join(name.split(".")[-2:])]
    }
    assert any(name.endswith("LayerNorm.gamma") for name in tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    close(EnginePooler(folder).hidden(PROMPTS), [reference(model, prompt) for prompt in PROMPTS])
    theirs = BertModel.from_pretrained(folder).eval()
    assert torch.equal(reference(theirs, PROMPTS[0]), reference(model, PROMPTS[0]))


def test_a_decoder_may_see_its_whole_prompt(written: Callable[[str], Written]) -> None:
    folder, model = written("qwen3")
    engine = EnginePooler(folder, overrides={"is_causal": False})
    assert not engine.plan.model.is_causal
    with torch.no_grad():
        expected = [
            model(torch.tensor([one]), attention_mask=torch.zeros(1, 1, len(one), len(one)))
            for one in PROMPTS
        ]
    close(engine.hidden(PROMPTS), [out.last_hidden_state[0] for out in expected])


def test_a_decoder_may_see_a_window_to_both_sides(tmp_path: Path) -> None:
    values = {**QWEN, "sliding_window": 9, "is_causal": False}
    model = make_pooling_model(tmp_path, MistralConfig, MistralModel, **values)
    close(EnginePooler(tmp_path).hidden(PROMPTS), [reference(model, prompt) for prompt in PROMPTS])


@pytest.mark.parametrize("name", ["bert", "qwen3", "gpt2", "opt"])
def test_embeddings_are_pooled_as_said(name: str, written: Callable[[str], Written]) -> None:
    folder, model = written(name)
    expected = [reference(model, prompt) for prompt in PROMPTS]
    pools: dict[str, Callable[[Tensor], Tensor]] = {
        "CLS": lambda hidden: hidden[0],
        "LAST": lambda hidden: hidden[-1],
        "MEAN": lambda hidden: hidden.mean(0),
    }
    for kind, pool in pools.items():
        engine = EnginePooler(folder, pooler={"seq_pooling_type": kind})
        pooled = [functional.normalize(pool(hidden), dim=-1) for hidden in expected]
        close(engine.pool(PROMPTS, EMBED), pooled)
    plain = PoolingSpec(task=PoolingTask.EMBED, use_activation=False)
    default = pools["CLS" if name == "bert" else "LAST"]
    close(EnginePooler(folder).pool(PROMPTS, plain), [default(hidden) for hidden in expected])
    tokens = PoolingSpec(task=PoolingTask.TOKEN_EMBED)
    close(
        EnginePooler(folder).pool(PROMPTS, tokens),
        [functional.normalize(hidden, dim=-1) for hidden in expected],
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("classes", "score"))])
def test_scores_of_prompts_equal_those_of_transformers(name: str, written: Callable[[str], Written]) -> None:
    folder, model = written(name)
    engine = EnginePooler(folder)
    logits = [reference(model, prompt) for prompt in PROMPTS]
    close(engine.pool(PROMPTS, PoolingSpec(task=PoolingTask.CLASSIFY, use_activation=False)), logits, 5e-5)
    is_score = name.endswith("score")
    activated = [one.sigmoid() if is_score else one.softmax(-1) for one in logits]
    close(engine.pool(PROMPTS, CLASSIFY), activated)
    assert engine.plan.model.labels == ("LABEL_0", "LABEL_1", "LABEL_2")[: 1 if is_score else 3]
    assert (engine.plan.model.scores_by == PoolingTask.CLASSIFY) == is_score


def test_the_activation_of_scores_is_that_of_the_files(written: Callable[[str], Written]) -> None:
    folder, model = written("bert-3-classes")
    logits = [reference(model, prompt) for prompt in PROMPTS]
    cases: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
        ({"problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"problem_type": "regression"}, lambda scores: scores),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda scores: scores),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, torch.tanh),
    ]
    for overrides, activation in cases:
        found = EnginePooler(folder, overrides=overrides).pool(PROMPTS, CLASSIFY)
        close(found, [activation(scores) for scores in logits], 5e-5)
    scaled = EnginePooler(folder, pooler={"logit_mean": -1.0, "logit_sigma": 4.0, "use_activation": False})
    close(scaled.pool(PROMPTS, CLASSIFY), [(scores + 1) / 4 for scores in logits], 5e-5)
    columns = EnginePooler(folder, pooler={"tok_pooling_type": "STEP", "returned_token_ids": [2, 0]})
    tokens = PoolingSpec(task=PoolingTask.TOKEN_CLASSIFY, use_activation=False)
    found = [scores[0] for scores in columns.pool(PROMPTS, tokens)]
    close(found, [scores[[2, 0]] for scores in logits], 5e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("tokens")])
def test_classes_of_tokens_equal_those_of_transformers(name: str, written: Callable[[str], Written]) -> None:
    folder, model = written(name)
    engine = EnginePooler(folder)
    expected = [reference(model, prompt).softmax(-1) for prompt in PROMPTS]
    close(engine.pool(PROMPTS, PoolingSpec(task=PoolingTask.TOKEN_CLASSIFY)), expected)
    assert engine.plan.model.tasks == (PoolingTask.TOKEN_CLASSIFY,)


def test_a_language_model_pools_without_its_head(tmp_path: Path, written: Callable[[str], Written]) -> None:
    bare, model = written("qwen3")
    whole = make_pooling_model(tmp_path / "model", Qwen3Config, Qwen3ForCausalLM, **QWEN)
    whole.model.load_state_dict(model.state_dict())
    whole.save_pretrained(tmp_path / "model")
    expected = EnginePooler(bare).pool(PROMPTS, EMBED)
    found = EnginePooler(tmp_path / "model").pool(PROMPTS, EMBED)
    assert all(map(torch.equal, found, expected))


def test_a_reranker_scores_by_two_tokens_of_a_language_model(tmp_path: Path) -> None:
    model = make_pooling_model(tmp_path, Qwen3Config, Qwen3ForCausalLM, **QWEN, tie_word_embeddings=True)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["a", "b"],
        "is_original_qwen3_reranker": True,
    }
    engine = EnginePooler(tmp_path, overrides=overrides)
    tokens = engine_tokens(tmp_path, "a", "b")
    expected = [reference(model, prompt)[-1, tokens].softmax(-1)[1:] for prompt in PROMPTS]
    close(engine.pool(PROMPTS, CLASSIFY), expected)
    assert engine.plan.model.scores_by == PoolingTask.CLASSIFY
    rows = EnginePooler(tmp_path, overrides={"classifier_from_token": ["a", "b"]})
    logits = [reference(model, prompt)[-1, tokens].softmax(-1) for prompt in PROMPTS]
    close(rows.pool(PROMPTS, CLASSIFY), logits)


def engine_tokens(folder: Path, *names: str) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.token_to_id(name) for name in names]


@pytest.mark.parametrize(("kind", "num_labels"), [("Reward", 1), ("ProcessReward", 2)])
def test_rewards_are_scores_of_tokens_or_of_steps(kind: str, num_labels: int, tmp_path: Path) -> None:
    model = make_pooling_model(tmp_path, Qwen2Config, Qwen2Model, num_key_value_heads=2)
    torch.manual_seed(0)
    first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, num_labels)
    tensors = {f"model.{name}": one for name, one in load_file(tmp_path / "model.safetensors").items()}
    for number, layer in ((0, first), (2, second)):
        tensors |= {f"score.{number}.{name}": one.detach() for name, one in layer.named_parameters()}
    save_file(tensors, tmp_path / "model.safetensors")
    change_config(tmp_path, architectures=[f"Qwen2For{kind}Model"])
    score = torch.nn.Sequential(first, torch.nn.ReLU(), second)
    scores = [score(reference(model, prompt)).detach() for prompt in PROMPTS]
    tag = PROMPTS[1][7]
    engine = EnginePooler(tmp_path, pooler={"step_tag_id": tag})
    if kind == "ProcessReward":
        is_tag = [torch.tensor(prompt) == tag for prompt in PROMPTS]
        scores = [one[tags].softmax(-1) for one, tags in zip(scores, is_tag, strict=True)]
        assert sum(map(len, scores)) >= 1
    close(engine.pool(PROMPTS, PoolingSpec(task=PoolingTask.TOKEN_CLASSIFY)), scores)


def test_embeddings_are_cut_before_they_are_normalized(
    tmp_path: Path, written: Callable[[str], Written]
) -> None:
    folder, model = written("bert")
    cut = [functional.normalize(reference(model, prompt)[0, :24], dim=-1) for prompt in PROMPTS]
    spec = PoolingSpec(task=PoolingTask.EMBED, dimensions=24)
    listed = EnginePooler(folder, overrides={"matryoshka_dimensions": [24, 64]})
    close(listed.pool(PROMPTS, spec), cut)
    close(EnginePooler(folder, overrides={"is_matryoshka": True}).pool(PROMPTS, spec), cut)
    own = EnginePooler(folder, pooler={"dimensions": 24})
    for one in (EMBED, spec):
        close(own.pool(PROMPTS, one), cut)
    for engine, dimensions in ((listed, 25), (EnginePooler(folder), 24), (own, 64)):
        with pytest.raises(InvalidRequestError, match="dimensions"):
            engine.pool(PROMPTS, PoolingSpec(task=PoolingTask.EMBED, dimensions=dimensions))


@pytest.mark.usefixtures("needs_build")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "modernbert", "nomic-bert", "qwen3"])
def test_a_batch_invariant_prompt_does_not_depend_on_its_neighbours(
    name: str, dtype: torch.dtype, written: Callable[[str], Written]
) -> None:
    folder, _ = written(name)
    kernels = select_invariant_kernels("cpu", dtype, 16)
    engine = EnginePooler(folder, kernels=kernels, dtype=dtype)
    prompts = [*PROMPTS, make_prompt(100, seed=1)]  # neighbours of one length
    together = engine.hidden(prompts)
    alone = [engine.hidden([prompt])[0] for prompt in prompts]
    backwards = engine.hidden(prompts[::-1])[::-1]
    assert all(map(torch.equal, together, alone))
    assert all(map(torch.equal, backwards, alone))


def test_what_a_folder_is_for(written: Callable[[str], Written], tmp_path: Path) -> None:
    make_pooling_model(tmp_path, Qwen3Config, Qwen3ForCausalLM, **QWEN)
    assert default_runner(tmp_path, read_model_fields(tmp_path)) == "generate"
    (tmp_path / "modules.json").write_text("[]")
    assert default_runner(tmp_path, read_model_fields(tmp_path)) == "pooling"
    for name in ("bert", "qwen3", "bert-tokens", "qwen3-3-classes"):
        folder, _ = written(name)
        assert default_runner(folder, read_model_fields(folder)) == "pooling"
        with pytest.raises(InvalidConfigError, match=r"runner is 'generate'; allowed with .*: 'pooling'"):
            load_model(EngineSettings(model=str(folder), runner="generate"))


def test_settings_that_cannot_hold_are_refused_by_name(written: Callable[[str], Written]) -> None:
    def refused(error: type[BatonError], match: str, make: Callable[[], object]) -> None:
        with pytest.raises(error, match=match):
            make()

    bert, scores = written("bert")[0], written("bert-3-classes")[0]
    refused(InvalidConfigError, "convert is 'x'; allowed: auto", lambda: PoolingSettings(convert="x"))
    refused(InvalidConfigError, "pooler_config has 'x'", lambda: PoolingSettings(pooler={"x": 1}))
    for name, value in (
        ("pooling_type", "MAX"),
        ("tok_pooling_type", "CLS"),
        ("dimensions", 0),
        ("logit_sigma", 0.0),
        ("use_activation", 1),
        ("step_tag_id", -1),
        ("returned_token_ids", []),
        ("task", "score"),
        ("enable_chunked_processing", True),
        ("max_embed_len", 9),
    ):
        named = {"pooling_type": "seq_pooling_type"}.get(name, name)
        match = f"{named} of pooler_config is .*; allowed: "
        refused(InvalidConfigError, match, lambda: PoolingSettings(pooler={name: value}))  # noqa: B023
    refused(
        InvalidConfigError, "dimensions of .* is 65", lambda: EnginePooler(bert, pooler={"dimensions": 65})
    )
    refused(InvalidConfigError, "task of", lambda: EnginePooler(bert, pooler={"task": "classify"}))
    refused(InvalidModelError, "classifier.weight is missing", lambda: EnginePooler(bert, convert="classify"))
    for key, value in (
        ("id2label", {"1": "a"}),
        ("problem_type", "x"),
        ("num_attention_heads", 7),
        ("is_decoder", True),
        ("sbert_ce_default_activation_function", "torch.nn.Softplus"),
        ("classifier_from_token", ["no such token"]),
    ):
        refused(
            InvalidModelError,
            f"{key} is .*; allowed: ",
            lambda: EnginePooler(scores, overrides={key: value}),  # noqa: B023
        )
