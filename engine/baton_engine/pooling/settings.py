"""The plan by which a model pools: read from the files of its folder, without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidConfigError
from baton_core.requests.pooling import PoolingModel, PoolingTask
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.models.learned_positions_config import LearnedPositionsConfig
from baton_engine.pooling.heads import (
    REWARDS,
    TAGGING,
    project_tokens,
    read_decoder_head,
    read_encoder_head,
    read_labels,
    read_token_scores,
)
from baton_engine.pooling.pooler_config import POOLING_TYPES, PoolerConfig, read_pooler_config
from baton_engine.pooling.projection import IDENTITY, ProjectionPlan
from baton_engine.pooling.sentence_files import (
    MODULES_FILE,
    SentenceFiles,
    read_activation,
    read_sentence_files,
)

CONVERSIONS: Final = ("auto", "none", "embed", "classify")
_CLASSIFIERS: Final = ("ForSequenceClassification", TAGGING, *REWARDS)
_EMBEDDING: Final = (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED)
_CLASSIFICATION: Final = (PoolingTask.CLASSIFY, PoolingTask.TOKEN_CLASSIFY)
_STEP_TAG: Final = 151651
"""Token behind each step of a solution in the prompts of Qwen2.5-Math-PRM, where nothing else is said."""
_PROBLEM_ACTIVATIONS: Final = {
    "regression": IDENTITY,
    "single_label_classification": "Softmax",
    "multi_label_classification": "Sigmoid",
}
PoolableConfig = DecoderConfig | EncoderConfig | LearnedPositionsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSettings:
    """The operator's settings of a model that pools.

    Raises:
        InvalidConfigError: a name is unknown, or a value is wrong.
    """

    convert: str = "auto"
    """One of `CONVERSIONS`: what a model is made into that could do more than one; auto as its files say."""
    pooler: Mapping[str, Any] = field(default_factory=dict)
    """Values of vLLM's `PoolerConfig`, which come before those of the model's files."""

    def __post_init__(self) -> None:
        if self.convert not in CONVERSIONS:
            raise InvalidConfigError(f"convert is {self.convert!r:.80}; allowed: {', '.join(CONVERSIONS)}")
        read_pooler_config(self.pooler)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPlan:
    """How a model pools."""

    config: ModelConfig
    """Configuration of the model to be built, which has no output head."""
    model: PoolingModel
    pooling_type: str
    """One of `POOLING_TYPES`."""
    projections: tuple[ProjectionPlan, ...]
    activation: str
    """Activation of class scores."""
    uses_activation: bool
    """True if embeddings are normalized, and class scores activated, where a request does not say."""
    dimensions: int | None = None
    """Numbers of an embedding where a request does not say; None is all."""
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    """Class scores s become `(s - logit_mean) / logit_sigma` before their activation."""
    step_tag_id: int | None = None
    """Token whose rows classification per token returns; None is all rows."""
    returned_classes: tuple[int, ...] | None = None
    """Columns that classification per token returns; None is all."""


def default_runner(folder: Path, fields: ConfigFields) -> str:
    """Return `generate` or `pooling`, by what a folder's files say its model is for."""
    names = fields.raw("architectures")
    name = str(names[0] if isinstance(names, list) and names else names)
    is_bare = name.endswith(("Model", "ForMaskedLM")) and not name.endswith("LMHeadModel")
    is_pooling = is_bare or name.endswith(_CLASSIFIERS) or (folder / MODULES_FILE).exists()
    return "pooling" if is_pooling else "generate"


def find_pooling(
    folder: Path, fields: ConfigFields, config: ModelConfig, runner: str, settings: PoolingSettings
) -> PoolingPlan | None:
    """Read how a model pools that is loaded with a `runner`; None where it generates.

    Raises:
        InvalidModelError: a file is broken, or asks for what the engine does not implement.
        InvalidConfigError: a setting cannot hold for this model.
    """
    if runner == "auto":
        runner = default_runner(folder, fields)
    return read_pooling(folder, fields, config, settings) if runner == "pooling" else None


def read_pooling(
    folder: Path, fields: ConfigFields, config: ModelConfig, settings: PoolingSettings
) -> PoolingPlan:
    """Read how the model of a folder pools; `config` is what `read_model_config` made of its `fields`.

    Raises:
        InvalidModelError: a file is broken, or asks for what the engine does not implement.
        InvalidConfigError: a setting cannot hold for this model.
    """
    if not isinstance(config, PoolableConfig):
        text = f"runner is 'pooling'; allowed with {config.architecture}: 'generate'"
        raise InvalidConfigError(f"{text} (no native code)")
    files, overrides = read_sentence_files(folder), read_pooler_config(settings.pooler)
    config = _headless(config, files)
    if _is_classifier(fields, config, files, settings):
        return _read_classifier(folder, fields, config, files or SentenceFiles(), overrides)
    return _read_embedder(fields, config, files, overrides)


def _headless(config: PoolableConfig, files: SentenceFiles | None) -> PoolableConfig:
    longest = config.max_position_embeddings
    if files is not None and files.max_seq_length is not None:
        longest = min(longest, files.max_seq_length)
    if isinstance(config, EncoderConfig):
        return replace(config, max_position_embeddings=longest)
    return replace(config, max_position_embeddings=longest, has_head=False)


def _is_classifier(
    fields: ConfigFields, config: PoolableConfig, files: SentenceFiles | None, settings: PoolingSettings
) -> bool:
    name = config.architecture
    if settings.convert in ("embed", "classify"):
        return settings.convert == "classify"
    if settings.convert == "none" and name.endswith(("ForCausalLM", "LMHeadModel")):
        text = f"convert is 'none'; allowed with {name} and runner 'pooling'"
        raise InvalidConfigError(f"{text}: 'auto', 'embed', 'classify'")
    if files is not None and files.pooling_type is not None:
        return False
    has_scores = files is not None and files.score_tokens is not None
    return name.endswith(_CLASSIFIERS) or has_scores or fields.raw("classifier_from_token") is not None


def _read_embedder(
    fields: ConfigFields, config: PoolableConfig, files: SentenceFiles | None, overrides: PoolerConfig
) -> PoolingPlan:
    given = files or SentenceFiles()
    size = _hidden_size(config)
    for projection in given.projections:
        if projection.in_size != size:
            name = f"in_features of {projection.folder}"
            raise fields.refuse(name, projection.in_size, f"{size}, the numbers before it")
        size = projection.out_size
    if overrides.dimensions is not None and overrides.dimensions > size:
        text = f"dimensions of pooler_config is {overrides.dimensions}"
        raise InvalidConfigError(f"{text}; allowed: 1 to {size}, the numbers of an embedding")
    pooling_type = overrides.seq_pooling_type or given.pooling_type
    if pooling_type is None and files is not None:
        text = "modules.json has no Pooling; allowed without it: pooling_type of pooler_config"
        raise InvalidConfigError(f"{text}, one of {', '.join(POOLING_TYPES)}")
    pooling_type = pooling_type or _default_type(config)
    dimensions = overrides.dimensions or given.truncate_dim
    listed, is_matryoshka = _read_matryoshka(fields, size), fields.boolean("is_matryoshka", False)
    if dimensions is not None and not listed and not is_matryoshka:
        size = min(size, dimensions)
    model = PoolingModel(
        tasks=_chosen(_EMBEDDING, overrides, config),
        whole_tasks=_whole(_EMBEDDING, pooling_type, config),
        embedding_size=size,
        matryoshka_dimensions=listed,
        is_matryoshka=is_matryoshka,
        has_token_types=_has_token_types(config),
        is_causal=_is_causal(config),
    )
    uses_activation = True if files is None else files.is_normalized
    if overrides.use_activation is not None:
        uses_activation = overrides.use_activation
    return PoolingPlan(
        config=config,
        model=model,
        pooling_type=pooling_type,
        projections=given.projections,
        activation=IDENTITY,
        uses_activation=uses_activation,
        dimensions=dimensions,
    )


def _read_classifier(
    folder: Path, fields: ConfigFields, config: PoolableConfig, files: SentenceFiles, overrides: PoolerConfig
) -> PoolingPlan:
    name, size = config.architecture, _hidden_size(config)
    tokens = read_token_scores(folder, fields) or ((files.score_tokens,) if files.score_tokens else None)
    labels = _labels(fields, name, tokens)
    default_type = _default_type(config)
    if tokens is not None:
        head: tuple[ProjectionPlan, ...] = (project_tokens(tokens, size, config.vocab_size, fields),)
    elif isinstance(config, EncoderConfig):
        head = read_encoder_head(fields, config, len(labels))
        if config.family == "ModernBert":
            default_type = fields.choice("classifier_pooling", ("cls", "mean"), "cls").upper()
    else:
        head = read_decoder_head(name, size, len(labels))
    pooling_type = overrides.seq_pooling_type or default_type
    tasks = _CLASSIFICATION[1:] if name.endswith((TAGGING, *REWARDS)) else _CLASSIFICATION
    is_reward = name.endswith(REWARDS[0])
    is_by_step = (overrides.tok_pooling_type or ("STEP" if name.endswith(REWARDS[1]) else "ALL")) == "STEP"
    return PoolingPlan(
        config=config,
        model=PoolingModel(
            tasks=_chosen(tasks, overrides, config),
            whole_tasks=_whole(tasks, pooling_type, config),
            labels=labels,
            has_token_types=_has_token_types(config),
            is_causal=_is_causal(config),
        ),
        pooling_type=pooling_type,
        projections=head,
        activation=_read_score_activation(fields, files, len(labels)),
        uses_activation=not is_reward if overrides.use_activation is None else overrides.use_activation,
        logit_mean=overrides.logit_mean,
        logit_sigma=overrides.logit_sigma,
        step_tag_id=_step_tag(name, overrides) if is_by_step else None,
        returned_classes=_returned(overrides, len(labels)) if is_by_step else None,
    )


def _labels(
    fields: ConfigFields, architecture: str, tokens: Sequence[tuple[int, int | None]] | None
) -> tuple[str, ...]:
    if tokens is not None:
        return tuple(f"LABEL_{label}" for label in range(len(tokens)))
    if architecture.endswith(REWARDS) and fields.raw("id2label") is None:
        fields = fields.with_default(
            "num_labels", 1 + REWARDS.index("For" + architecture.rpartition("For")[2])
        )
    return read_labels(fields)


def _step_tag(architecture: str, overrides: PoolerConfig) -> int | None:
    default = _STEP_TAG if architecture.endswith(REWARDS[1]) else None
    return default if overrides.step_tag_id is None else overrides.step_tag_id


def _returned(overrides: PoolerConfig, num_labels: int) -> tuple[int, ...] | None:
    columns = overrides.returned_token_ids
    if columns is not None and max(columns) >= num_labels:
        text = f"returned_token_ids of pooler_config has {max(columns)}"
        raise InvalidConfigError(f"{text}; allowed: 0 to {num_labels - 1}, the model's classes")
    return columns


def _read_score_activation(fields: ConfigFields, files: SentenceFiles, num_labels: int) -> str:
    """Return the activation of class scores; a softmax of one class is a sigmoid."""
    section = fields.section("sentence_transformers") or ConfigFields("", {})
    named = (
        files.activation
        or read_activation(section, "activation_fn")
        or read_activation(fields, "sbert_ce_default_activation_function")
    )
    problem = fields.choice("problem_type", tuple(_PROBLEM_ACTIVATIONS), "single_label_classification")
    activation = named or _PROBLEM_ACTIVATIONS[problem]
    return "Sigmoid" if activation == "Softmax" and num_labels == 1 else activation


def _chosen(
    tasks: tuple[PoolingTask, ...], overrides: PoolerConfig, config: PoolableConfig
) -> tuple[PoolingTask, ...]:
    if overrides.task is None:
        return tasks
    if overrides.task not in tasks:
        text = f"task of pooler_config is {overrides.task.value!r}; allowed with {config.architecture}"
        raise InvalidConfigError(f"{text}: {', '.join(tasks)}")
    return (overrides.task,)


def _whole(
    tasks: tuple[PoolingTask, ...], pooling_type: str, config: PoolableConfig
) -> tuple[PoolingTask, ...]:
    """Return the tasks that need all hidden states of a prompt at once."""
    if pooling_type != "LAST" or not _is_causal(config):
        return tasks
    return tuple(task for task in tasks if task.is_per_token)


def _is_causal(config: PoolableConfig) -> bool:
    return isinstance(config, LearnedPositionsConfig) or config.is_causal


def _default_type(config: PoolableConfig) -> str:
    return "CLS" if isinstance(config, EncoderConfig) else "LAST"


def _hidden_size(config: PoolableConfig) -> int:
    return config.embedding_size if isinstance(config, LearnedPositionsConfig) else config.hidden_size


def _has_token_types(config: PoolableConfig) -> bool:
    return isinstance(config, EncoderConfig) and config.num_token_types > 1


def _read_matryoshka(fields: ConfigFields, size: int) -> tuple[int, ...]:
    values: Any = fields.raw("matryoshka_dimensions")
    if values is None:
        return ()
    is_list = isinstance(values, list) and all(type(one) is int and 1 <= one <= size for one in values)
    if not is_list:
        raise fields.refuse("matryoshka_dimensions", values, f"a list of integers of 1 to {size}")
    return tuple(dict.fromkeys(values))
