"""The description of a model's folder beside its weights, which a worker and a router must read alike.

A router has no weights: it knows by this that a worker serves the model whose text it reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

from baton_core.errors import IncompatibleWorkerError, InvalidModelError, shown_briefly

MAX_CONFIG_VALUES: Final = 512
MAX_CONFIG_CHARACTERS: Final = 128
"""The longest key and the longest value that a description holds; a longer value is described by its hash."""
_MAX_SECTION: Final = 64
"""Sections with more keys, such as tables of labels, are described as one value."""
_NOT_COMPARED: Final = frozenset(
    {
        *("_name_or_path", "_commit_hash", "transformers_version"),  # where the folder comes from
        *("use_cache", "output_attentions", "output_hidden_states", "return_dict"),  # of Transformers' calls
        *("dtype", "torch_dtype", "eos_token_id"),  # compared as what workers make of them
    }
)
_TOKENIZER_PARTS: Final = (
    *("added_tokens", "normalizer", "pre_tokenizer", "model", "post_processor"),
    "decoder",
)
"""The parts of a tokenizer.json that decide ids and text; the others cut and pad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model without its weights."""

    config: tuple[tuple[str, str], ...] = ()
    """Values of config.json that decide tokens: sorted keys, each with its value as JSON."""
    tokenizer: str = ""
    """Hash of the tokenizer, by `tokenizer_digest`; empty where there is none."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an output, ascending."""

    def require_same(self, other: ModelDescription, where: str, *, with_tokenizer: bool = True) -> None:
        """Refuse the description `other` of a worker that wants to join; this one is what `where` has.

        Raises:
            IncompatibleWorkerError: names the first value that differs, it and what is allowed.
        """
        if self.config != other.config:
            mine, theirs = dict(self.config), dict(other.config)
            for key in sorted(mine.keys() | theirs.keys()):
                require_equal(f"config.{key}", theirs.get(key), mine.get(key), where)
        require_equal("eos_token_ids", other.eos_token_ids, self.eos_token_ids, where)
        if with_tokenizer:
            require_equal("tokenizer", other.tokenizer, self.tokenizer, where)


def require_equal(name: str, theirs: object, mine: object, where: str, hint: str = "") -> None:
    """Refuse a worker that says `theirs` of itself where `mine` is what `where` has.

    Raises:
        IncompatibleWorkerError: names the value, it and what is allowed.
    """
    if theirs != mine:
        raise IncompatibleWorkerError(
            f"{name} is {_shown(theirs)}; allowed: {_shown(mine)}, as in {where}{hint}"
        )


def describe_model(
    config: Mapping[str, Any], eos_token_ids: Iterable[int], vocab_size: int, tokenizer: str = ""
) -> ModelDescription:
    """Return what a config.json says that decides tokens, beside tokens that end an output and the tokenizer.

    Names of folders and versions are left out, and so is how numbers and keys are written.

    Raises:
        InvalidModelError: it holds more than any model's.
    """
    try:
        values = {key: _text(value) for key, value in _flat(config) if key not in _NOT_COMPARED}
    except RecursionError:
        raise InvalidModelError("config.json is nested too deeply; allowed: a model's values") from None
    if len(values) > MAX_CONFIG_VALUES:
        raise InvalidModelError(
            f"config.json holds {len(values)} values; allowed: at most {MAX_CONFIG_VALUES}"
        )
    for key in values:
        if not (0 < len(key) <= MAX_CONFIG_CHARACTERS and key.isprintable()):
            allowed = f"keys of 1 to {MAX_CONFIG_CHARACTERS} printable characters"
            raise InvalidModelError(f"config.json has the key {key!r:.200}; allowed: {allowed}")
    return ModelDescription(
        config=tuple(sorted(values.items())),
        tokenizer=tokenizer,
        eos_token_ids=tuple(sorted({token for token in eos_token_ids if token < vocab_size})),
    )


def tokenizer_digest(tokenizer: Mapping[str, Any]) -> str:
    """Return a 32-digit hex hash of what a tokenizer.json says that decides ids and text.

    Pairs of merges may be written as texts or as lists, and settings of its model that are off left out.
    """
    parts = {name: tokenizer.get(name) for name in _TOKENIZER_PARTS}
    if isinstance(model := parts["model"], Mapping):
        settings = {key: value for key, value in model.items() if value is not None and value is not False}
        if isinstance(merges := settings.get("merges"), list):
            settings["merges"] = [
                " ".join(map(str, pair)) if isinstance(pair, list) else pair for pair in merges
            ]
        parts["model"] = settings
    return _digest(msgspec.json.encode(parts, order="deterministic"))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values, those of one section within another as `section.key`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and 0 < len(value) <= _MAX_SECTION and not prefix:
            yield from _flat(value, f"{key}.")
        else:
            yield prefix + key, value


def _text(value: object) -> str:
    text = _written(_with_plain_numbers(value))
    return text if len(text) <= MAX_CONFIG_CHARACTERS else f"hash {_digest(text.encode())}"


def _written(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _with_plain_numbers(value: object) -> object:
    """Write whole numbers alike: 10000.0 as 10000."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _with_plain_numbers(each) for key, each in value.items()}
        case list():
            return [_with_plain_numbers(each) for each in value]
    return value


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _shown(value: object) -> str:
    return "not given" if value is None else shown_briefly(value)
