"""The layers that architectures have behind their last hidden state to classify it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.models.encoder_config import EncoderConfig
from baton_engine.pooling.projection import CONFIG_ACTIVATIONS, ProjectionPlan

TAGGING: Final = "ForTokenClassification"
REWARDS: Final = ("ForRewardModel", "ForProcessRewardModel")
_METHODS: Final = ("from_2_way_softmax", "no_post_processing")
_HEAD_NAMES: Final = ("lm_head", "model.embed_tokens")
MAX_LABELS: Final = 1 << 20


def read_labels(fields: ConfigFields) -> tuple[str, ...]:
    """Return the names of the classes.

    Raises:
        InvalidModelError: `id2label` does not name each class once.
    """
    values: Any = fields.raw("id2label")
    number = fields.optional_integer("num_labels", maximum=MAX_LABELS)
    if values is None:
        return tuple(f"LABEL_{label}" for label in range(2 if number is None else number))
    numbers = [str(label) for label in range(len(values))] if isinstance(values, dict) else []
    if not numbers or set(values) != set(numbers) or not all(map(_is_name, values.values())):
        raise fields.refuse("id2label", values, "a name for each number from 0 on")
    if number is not None and number != len(numbers):
        raise fields.refuse("num_labels", number, f"{len(numbers)}, the names in id2label")
    return tuple(values[number] for number in numbers)


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def read_encoder_head(
    fields: ConfigFields, config: EncoderConfig, num_labels: int
) -> tuple[ProjectionPlan, ...]:
    """Return the layers behind an encoder that give the scores of `num_labels` classes.

    Raises:
        InvalidModelError: a value asks for what the engine does not implement.
    """
    size, is_per_token = config.hidden_size, config.architecture.endswith(TAGGING)
    classifier = ProjectionPlan(names=("classifier",), in_size=size, out_size=num_labels, has_bias=True)
    match config.family:
        case "ModernBert":
            known = tuple(CONFIG_ACTIVATIONS)
            activation = CONFIG_ACTIVATIONS[fields.choice("classifier_activation", known, "gelu")]
            dense = ProjectionPlan(
                names=("head.dense",),
                in_size=size,
                out_size=size,
                has_bias=fields.boolean("classifier_bias", False),
                activation=activation,
                norm="head.norm",
                norm_eps=config.norm_eps,
            )
            return dense, classifier
        case _ if is_per_token:
            return (classifier,)
        case "Bert" | "NomicBert" | "Gte" | "New":
            names = (f"{config.names.prefix}pooler.dense", "pooler.dense")
            return _tanh(names, size), classifier
        case _:
            output = ProjectionPlan(
                names=("classifier.out_proj",), in_size=size, out_size=num_labels, has_bias=True
            )
            return _tanh(("classifier.dense",), size), output


def _tanh(names: tuple[str, ...], size: int) -> ProjectionPlan:
    return ProjectionPlan(names=names, in_size=size, out_size=size, has_bias=True, activation="Tanh")


def read_decoder_head(architecture: str, size: int, num_labels: int) -> tuple[ProjectionPlan, ...]:
    """Return the layers behind a decoder that give the scores of `num_labels` classes."""
    if architecture.endswith(REWARDS):
        inner = ProjectionPlan(names=("score.0",), in_size=size, out_size=size, activation="ReLU")
        return inner, ProjectionPlan(names=("score.2",), in_size=size, out_size=num_labels)
    return (ProjectionPlan(names=("score",), in_size=size, out_size=num_labels),)


def read_token_scores(folder: Path, fields: ConfigFields) -> tuple[tuple[int, int | None], ...] | None:
    """Return the tokens whose logits are the scores of classes; None where config.json names none.

    Of two tokens `from_2_way_softmax`, as of Qwen3-Reranker's, the score is the second's logit less the
    first's, whose sigmoid is the second's share.

    Raises:
        InvalidModelError: a name is no token of the model's, or the method is another.
    """
    tokens: Any = fields.raw("classifier_from_token")
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not tokens or not all(map(_is_name, tokens)):
        raise fields.refuse("classifier_from_token", tokens, "a list of tokens")
    default = _METHODS[0] if fields.boolean("is_original_qwen3_reranker", False) else _METHODS[1]
    method = fields.choice("method", _METHODS, default)
    if method == _METHODS[0] and len(tokens) != 2:
        raise fields.refuse("classifier_from_token", tokens, f"two tokens with method {method}")
    ids = [_token_id(folder, fields, token) for token in tokens]
    return ((ids[1], ids[0]),) if method == _METHODS[0] else tuple((token, None) for token in ids)


def _token_id(folder: Path, fields: ConfigFields, token: str) -> int:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InvalidModelError(f"{path} is missing; allowed with classifier_from_token: a tokenizer")
    found: int | None = Tokenizer.from_file(str(path)).token_to_id(token)
    if found is None:
        raise fields.refuse("classifier_from_token", token, "tokens of the model's tokenizer")
    return found


def project_tokens(
    tokens: tuple[tuple[int, int | None], ...], size: int, vocab_size: int, fields: ConfigFields
) -> ProjectionPlan:
    """Return the layer whose outputs are logits of tokens, or differences of them.

    Raises:
        InvalidModelError: a token is none of the model's.
    """
    for token in (one for pair in tokens for one in pair if one is not None):
        if not 0 <= token < vocab_size:
            raise fields.refuse("a token of the scores", token, f"0 to {vocab_size - 1}")
    return ProjectionPlan(
        names=_HEAD_NAMES, in_size=size, out_size=len(tokens), has_bias=False, token_rows=tokens
    )
