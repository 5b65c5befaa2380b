"""Reads a model's folder for the router: sizes, sampling defaults, special tokens, chat template.

Read once when the router starts; no weights, no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidConfigError, InvalidModelError, InvalidRequestError
from baton_core.model.config_overrides import overridden
from baton_core.requests.sampling_params import SamplingParams
from baton_router.text.byte_level_bpe import MERGES, VOCABULARY, ByteLevelBpe
from baton_sandbox.model_files import check_links

_HUB_PATTERNS: Final = ("*.json", "*.jinja", MERGES)
_LENGTH_KEYS: Final = ("max_position_embeddings", "n_positions")
"""The second is GPT-2's and its relatives'."""
_WIDTH_KEYS: Final = ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model")
"""The first is OPT's, whose embeddings may be narrower than its layers."""
_MAX_INT: Final = 2**31 - 1
SAMPLING_FIELDS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model as the router sees it."""

    path: Path
    tokenizer_path: Path
    """The folder of its tokenizer: mostly the same."""
    config: Mapping[str, Any]
    """The values of config.json, under those that the operator chooses instead."""
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    """End tokens that config.json and generation_config.json name."""
    sampling_defaults: SamplingParams
    """The model's generation_config over Baton's own defaults; without a seed."""
    max_output_tokens: int | None = None
    """Most tokens of an output that a router makes, where the operator's generation_config limits them."""
    special_tokens: Mapping[str, str]
    """Named ones: `bos_token`, `eos_token` and so on."""
    extra_special_tokens: tuple[str, ...]
    chat_template: str | None
    """Jinja source; None where the model has no default template."""
    tool_chat_template: str | None = None
    """Template for conversations with tools, where the model has its own for them: `tool_use`."""
    byte_level_bpe: ByteLevelBpe | None = None
    """The tokenizer of a folder without tokenizer.json."""
    sentence_prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that a model that embeds wants before its inputs, by kind, such as query and document."""

    @property
    def embedding_size(self) -> int | None:
        """Width of the embeddings of its tokens; None where config.json has it under another key."""
        return next((self.config[key] for key in _WIDTH_KEYS if isinstance(self.config.get(key), int)), None)

    @property
    def tokenizer_file(self) -> Path:
        return self.tokenizer_path / ("tokenizer.json" if self.byte_level_bpe is None else VOCABULARY)


def find_model_folder(model: str, *, field: str = "model") -> Path:
    """Return the folder that `model` names, or that of a Hugging Face Hub id, fetched into its cache.

    Only configuration and tokenizer files are fetched. Blocks on disk and network. `field` is what an error
    calls it.

    Raises:
        InvalidModelError: there is no such folder and no such id, or the Hub cannot be reached.
    """
    folder = Path(os.path.expanduser(model))
    if model and os.path.isdir(folder):
        return folder
    allowed = "a folder that exists, or a model id of the Hugging Face Hub"
    if not model or model.startswith(("/", ".", "~")) or os.path.exists(folder):
        raise InvalidModelError(f"{field} is {model!r}; allowed: {allowed}")
    # Optional here: a router that is given a folder never needs the Hub's client.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(_HUB_PATTERNS)))
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"{field} is {model!r}; allowed: {allowed} ({error})") from error


def read_model_folder(
    path: Path, tokenizer: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> ModelFolder:
    """Read and check the folder's configuration files; those of the tokenizer from `tokenizer`, if given.

    `overrides` come before the values of config.json, which may be missing where they name the architecture.

    Raises:
        InvalidModelError: folder or file missing, broken JSON, or a value of the wrong kind.
    """
    tokenizer = tokenizer or path
    if not path.is_dir():
        raise InvalidModelError(f"model folder is {str(path)!r}; allowed: a folder that exists")
    for folder in {path, tokenizer}:
        check_links(folder)
    overrides = overrides or {}
    config = overridden(read_json(path / "config.json", is_optional="architectures" in overrides), overrides)
    generation = read_json(path / "generation_config.json", is_optional=True)
    tokenizer_config = read_json(tokenizer / "tokenizer_config.json", is_optional=True)
    templates = _chat_templates(tokenizer, tokenizer_config)
    byte_level_bpe = None
    if not (tokenizer / "tokenizer.json").is_file():
        byte_level_bpe = ByteLevelBpe.find(tokenizer, tokenizer_config)
        if byte_level_bpe is None:
            raise InvalidModelError(
                f"{tokenizer / 'tokenizer.json'} is missing; allowed: a model folder that holds it, "
                f"or {VOCABULARY} and {MERGES} of a GPT2Tokenizer, or --tokenizer with another folder"
            )
    return ModelFolder(
        path=path,
        tokenizer_path=tokenizer,
        config=config,
        vocab_size=_positive_int(path, config, "vocab_size"),
        max_position_embeddings=_positive_int(
            path, config, next((key for key in _LENGTH_KEYS if key in config), _LENGTH_KEYS[0])
        ),
        eos_token_ids=(
            *_eos_token_ids(path / "config.json", config),
            *_eos_token_ids(path / "generation_config.json", generation),
        ),
        sampling_defaults=read_sampling_defaults(path / "generation_config.json", generation),
        special_tokens=_special_tokens(tokenizer, tokenizer_config),
        extra_special_tokens=_extra_special_tokens(tokenizer_config),
        chat_template=templates.get("default"),
        tool_chat_template=templates.get("tool_use"),
        byte_level_bpe=byte_level_bpe,
        sentence_prompts=_sentence_prompts(path),
    )


def read_chat_template(value: str, field: str = "--chat-template") -> str:
    """Return the Jinja source that `value` names: a file's, or `value` itself.

    Raises:
        InvalidConfigError: it is neither.
    """
    try:
        if os.path.isfile(value):
            return Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        allowed = f"a file of UTF-8 text ({error})"
        raise InvalidConfigError(f"{field} is {value!r}; allowed: {allowed}") from error
    if "{" not in value:
        allowed = "a file that exists, or Jinja source"
        raise InvalidConfigError(f"{field} is {value!r}; allowed: {allowed}")
    return value


def read_json(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Return the object in a file; an optional file that is missing holds an empty one.

    Raises:
        InvalidModelError: the file cannot be read or holds something else.
    """
    if is_optional and not path.exists():
        return {}
    if path.exists() and not path.is_file():
        raise InvalidModelError(f"{path} is no regular file; allowed: a JSON file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidModelError(f"{path} cannot be read ({error.strerror}); allowed: a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path} is not JSON ({error}); allowed: one JSON object") from error
    if not isinstance(value, dict):
        raise InvalidModelError(f"{path} holds {type(value).__name__}; allowed: one JSON object")
    return value


def _sentence_prompts(folder: Path) -> dict[str, str]:
    values = read_json(folder / "config_sentence_transformers.json", is_optional=True).get("prompts")
    named = values.items() if isinstance(values, dict) else ()
    return {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}


def _positive_int(folder: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_INT:
        raise InvalidModelError(
            f"{folder / 'config.json'}: {key} is {value!r:.200}; allowed: an integer from 1 to {_MAX_INT}"
        )
    return value


def _eos_token_ids(path: Path, values: Mapping[str, Any]) -> list[int]:
    value = values.get("eos_token_id")
    token_ids = value if isinstance(value, list) else [] if value in (None, -1) else [value]
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            allowed = "a token id, or a list of token ids"
            raise InvalidModelError(f"{path}: eos_token_id is {value!r:.200}; allowed: {allowed}")
    return token_ids


def read_sampling_defaults(path: Path, generation: Mapping[str, Any]) -> SamplingParams:
    """Return Baton's defaults under those of a generation_config, which `path` names in errors.

    Raises:
        InvalidModelError: a value is out of range.
    """
    values = {
        name: generation[key] for key, name in SAMPLING_FIELDS.items() if generation.get(key) is not None
    }
    try:
        return SamplingParams(**values)
    except InvalidRequestError as error:
        raise InvalidModelError(f"{path}: {error}") from error


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    named = _named_tokens(config)
    if isinstance(config.get("extra_special_tokens"), dict):
        named |= _named_tokens(config["extra_special_tokens"], suffix="")
    if "added_tokens_decoder" not in config:  # older folders name them in a file of their own
        named |= _named_tokens(read_json(folder / "special_tokens_map.json", is_optional=True))
    return named


def _named_tokens(values: Mapping[str, Any], suffix: str = "_token") -> dict[str, str]:
    contents = {name: _content(value) for name, value in values.items() if name.endswith(suffix)}
    return {name: content for name, content in contents.items() if content is not None}


def _extra_special_tokens(config: Mapping[str, Any]) -> tuple[str, ...]:
    values = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    contents = [_content(value) for value in values] if isinstance(values, list) else []
    return tuple(content for content in contents if content is not None)


def _content(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Jinja sources by name: files come before the tokenizer's configuration."""
    value = config.get("chat_template")
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    elif value is None or isinstance(value, str):
        value = {} if value is None else {"default": value}
    texts = [text for pair in value.items() for text in pair] if isinstance(value, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidModelError(
            f"{folder / 'tokenizer_config.json'}: chat_template is {type(config['chat_template']).__name__}; "
            "allowed: a string, or a list of objects with name and template"
        )
    paths = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    paths["default"] = folder / "chat_template.jinja"
    return value | {name: _read_template(path) for name, path in paths.items() if path.is_file()}


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{path} cannot be read ({error}); allowed: UTF-8 text") from error
