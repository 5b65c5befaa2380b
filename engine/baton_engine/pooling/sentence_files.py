"""Reads the files that sentence-transformers writes beside a model's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from baton_engine.checkpoint.config_fields import ConfigFields, read_json_objects
from baton_engine.pooling.projection import ACTIVATIONS, IDENTITY, ProjectionPlan

MODULES_FILE: Final = "modules.json"
_CONFIG_FILE: Final = "config_sentence_transformers.json"
_TEXT_FILES: Final = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
)
_BEHIND_POOLED: Final = ("Dense", "Normalize")
_FOLLOWING: Final = {
    None: ("Transformer",),
    "Transformer": ("Pooling", "LogitScore"),
    "Pooling": _BEHIND_POOLED,
    "Dense": _BEHIND_POOLED,
    "Normalize": _BEHIND_POOLED,
    "LogitScore": (),
}
"""Kinds of modules that may follow one of a kind; None is the beginning."""
_MODES: Final = {"cls": "CLS", "lasttoken": "LAST", "mean": "MEAN"}
_OLD_MODES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_INPUT: Final = "sentence_embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """The modules behind a model, in their order, and the limits that the files set."""

    pooling_type: str | None = None
    """CLS, LAST or MEAN; None without a module that pools."""
    projections: tuple[ProjectionPlan, ...] = ()
    is_normalized: bool = False
    """True if the last module normalizes."""
    truncate_dim: int | None = None
    """Numbers of an embedding where a request does not say; None is all."""
    score_tokens: tuple[int, int | None] | None = None
    """Tokens whose logits make a score: the first's, less the second's; None without such a module."""
    activation: str | None = None
    """Activation of scores; None is not said."""
    max_seq_length: int | None = None
    """Longest prompt in tokens; None is not said."""


def read_sentence_files(folder: Path) -> SentenceFiles | None:
    """Read the files of a folder; None where modules.json is not among them.

    Raises:
        InvalidModelError: a file is broken, or asks for what the engine does not implement.
    """
    path = folder / MODULES_FILE
    if not path.exists():
        return None
    kind, pooling_type, projections, is_normalized, score_tokens = None, None, [], False, None
    for number, values in enumerate(read_json_objects(path)):
        fields = ConfigFields(str(path), values)
        kind, own = _read_kind(fields, number, kind), _module_folder(folder, fields)
        match kind:
            case "Pooling":
                pooling_type = _read_pooling_type(ConfigFields.from_file(own / "config.json"))
            case "Dense":
                projections.append(_read_dense(folder, own, is_normalized))
                is_normalized = False
            case "Normalize":
                is_normalized = True
            case "LogitScore":
                score = ConfigFields.from_file(own / "config.json")
                true, false = (
                    score.optional_integer(key, minimum=0) for key in ("true_token_id", "false_token_id")
                )
                if true is None:
                    raise score.refuse("true_token_id", None, "a token id")
                score_tokens = true, false
            case _ if own != folder:
                raise fields.refuse(
                    "path of the Transformer", fields.raw("path"), "empty, the model's folder"
                )
    config = _optional_fields(folder / _CONFIG_FILE)
    texts = [_optional_fields(folder / name) for name in _TEXT_FILES]
    for fields in texts:
        if fields.boolean("do_lower_case", False) and not _lowers(folder):
            raise fields.refuse(
                "do_lower_case", True, "false, where tokenizer.json does not lower-case texts"
            )
    lengths = (fields.optional_integer("max_seq_length") for fields in texts)
    return SentenceFiles(
        pooling_type=pooling_type,
        projections=tuple(projections),
        is_normalized=is_normalized,
        truncate_dim=config.optional_integer("truncate_dim"),
        score_tokens=score_tokens,
        activation=read_activation(config, "activation_fn"),
        max_seq_length=next((length for length in lengths if length is not None), None),
    )


def read_activation(fields: ConfigFields, key: str) -> str | None:
    """Return the name of a class of torch's, given by its full path; None where the key is absent."""
    path = fields.raw(key)
    if path is None:
        return None
    name = path.rpartition(".")[2] if isinstance(path, str) and path.startswith("torch.nn.") else None
    if name not in ACTIVATIONS:
        raise fields.refuse(key, path, ", ".join(f"torch.nn.{activation}" for activation in ACTIVATIONS))
    return name


def _optional_fields(path: Path) -> ConfigFields:
    return ConfigFields.from_file(path) if path.exists() else ConfigFields(str(path), {})


def _lowers(folder: Path) -> bool:
    """Say whether the tokenizer of a folder lower-cases texts itself."""
    normalizer = _optional_fields(folder / "tokenizer.json").section("normalizer")
    if normalizer is None:
        return False
    parts = normalizer.raw("normalizers")
    values = [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
    return any(
        one.get("type") == "Lowercase" or one.get("lowercase") is True
        for one in (normalizer.values(), *values)
    )


def _read_kind(fields: ConfigFields, number: int, previous: str | None) -> str:
    """Return the kind of a module by the last part of its type: releases differ in the parts before."""
    value: Any = fields.raw("type")
    kind = value.rpartition(".")[2] if isinstance(value, str) else None
    allowed = _FOLLOWING[previous]
    if kind not in allowed:
        text = ", ".join(allowed) or "none"
        raise fields.refuse(
            f"type of module {number}", value, text if previous is None else f"{text} behind {previous}"
        )
    return kind


def _module_folder(folder: Path, fields: ConfigFields) -> Path:
    value = fields.raw("path")
    path = PurePosixPath(value) if isinstance(value, str) else None
    if path is None or path.is_absolute() or ".." in path.parts:
        raise fields.refuse("path", value, "a folder inside the model's")
    return folder / path


def _read_pooling_type(fields: ConfigFields) -> str:
    mode: Any = fields.raw("pooling_mode")
    if mode is None:
        modes = [name for key, name in _OLD_MODES.items() if fields.boolean(key, False)] or ["mean"]
    else:
        modes = mode if isinstance(mode, list) else [mode]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in _MODES:
        raise fields.refuse("pooling_mode", modes, f"one of {', '.join(_MODES)}")
    fields.only("include_prompt", True)
    return _MODES[modes[0]]


def _read_dense(folder: Path, own: Path, is_input_normalized: bool) -> ProjectionPlan:
    fields = ConfigFields.from_file(own / "config.json")
    fields.only("use_residual", False)
    for key in ("module_input_name", "module_output_name"):
        fields.choice(key, (_INPUT,), _INPUT)
    return ProjectionPlan(
        names=("linear",),
        is_input_normalized=is_input_normalized,
        in_size=fields.integer("in_features"),
        out_size=fields.integer("out_features"),
        has_bias=fields.boolean("bias", True),
        activation=read_activation(fields, "activation_function") or IDENTITY,
        folder=str(own.relative_to(folder)),
    )
