"""Typed reading of a model folder's JSON files: refuses by key, value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from baton_core.errors import InvalidModelError

MAX_INTEGER: Final = 2**31 - 1
MAX_LAYERS: Final = 10_000
MAX_HEAD_DIM: Final = 8192
"""Bounds of what sizes memory before the weights can contradict the configuration."""
_MAX_JSON_BYTES: Final = 64 << 20
_MAX_NUMBER: Final = 1e12
"""Far above any factor, base or size that a model has, far below where their powers overflow."""
_NUMBER: Final = f"a number above 0 and at most {_MAX_NUMBER:g}"


def read_json_object(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        InvalidModelError: the file is missing, unreadable, not JSON or not an object.
    """
    values = _read_json(path, "one JSON object")
    if not isinstance(values, dict):
        raise InvalidModelError(f"{path} holds {type(values).__name__}; allowed: one JSON object")
    return values


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """Read a JSON list of objects.

    Raises:
        InvalidModelError: the file is missing, unreadable, not JSON or another list.
    """
    values = _read_json(path, "a JSON list of objects")
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InvalidModelError(f"{path} holds {type(values).__name__}; allowed: a JSON list of objects")
    return values


def _read_json(path: Path, allowed: str) -> object:
    try:
        if path.exists() and not path.is_file():
            raise InvalidModelError(f"{path} is no regular file; allowed: {allowed}")
        if path.exists() and path.stat().st_size > _MAX_JSON_BYTES:
            raise InvalidModelError(
                f"{path} holds {path.stat().st_size} bytes; allowed: at most {_MAX_JSON_BYTES}"
            )
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidModelError(f"{path} is missing; allowed: a model folder that holds it") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path} is not JSON ({error}); allowed: {allowed}") from None


def unreadable(path: Path, error: OSError) -> InvalidModelError:
    return InvalidModelError(f"{path} cannot be read ({error.strerror}); allowed: a readable file")


class ConfigFields:
    """The keys of one JSON object, read by type.

    An absent key and `null` mean the default; without a default they are refused.
    Every reader raises InvalidModelError for a value it does not allow.
    """

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        self._source = source
        self._values = values

    @classmethod
    def from_file(cls, path: Path) -> ConfigFields:
        return cls(str(path), read_json_object(path))

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def names(self) -> tuple[str, ...]:
        """Return the keys, in their order."""
        return tuple(self._values)

    def values(self) -> Mapping[str, Any]:
        """Return the whole object."""
        return self._values

    def updated(self, overrides: Mapping[str, Any]) -> ConfigFields:
        """Return the same object with further values, which come before its own."""
        return ConfigFields(self._source, {**self._values, **overrides})

    def with_default(self, key: str, value: Any) -> ConfigFields:
        """Return the same object with a value where the key is absent; a `null` stays."""
        return ConfigFields(self._source, {key: value} | self._values)

    def refuse(self, key: str, value: object, allowed: str) -> InvalidModelError:
        """Return the error for a value, to be raised by the caller."""
        return InvalidModelError(f"{self._source}: {key} is {value!r:.200}; allowed: {allowed}")

    def integer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.refuse(key, value, f"an integer of {minimum} to {maximum}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int | None:
        return None if self.raw(key) is None else self.integer(key, minimum=minimum, maximum=maximum)

    def number(self, key: str, default: float | None = None) -> float:
        """Read a number above zero."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not _is_number(value):
            raise self.refuse(key, value, _NUMBER)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.raw(key) is None else self.number(key)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Read a list of `count` numbers above zero."""
        value = self.raw(key)
        if not isinstance(value, list) or len(value) != count or not all(map(_is_number, value)):
            raise self.refuse(key, value, f"a list of {count} numbers, each {_NUMBER}")
        return tuple(map(float, value))

    def integers(self, key: str, count: int) -> tuple[int, ...]:
        """Read a list of `count` integers above zero."""
        value = self.raw(key)
        is_list = isinstance(value, list) and len(value) == count
        if not is_list or any(type(one) is not int or not 1 <= one <= MAX_INTEGER for one in value):
            raise self.refuse(key, value, f"a list of {count} integers of 1 to {MAX_INTEGER}")
        return tuple(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true, false")
        return value

    def only(self, key: str, allowed: bool) -> None:
        """Refuse the other value of a switch; that of an absent one is the allowed one."""
        if self.boolean(key, allowed) is not allowed:
            raise self.refuse(key, not allowed, str(allowed).lower())

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if value not in allowed:
            raise self.refuse(key, value, ", ".join(allowed))
        return str(value)

    def section(self, key: str) -> ConfigFields | None:
        """Read a nested object; an absent or empty one is None."""
        value = self.raw(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, value, "an object")
        return self.nested(key, value)

    def section_or_empty(self, key: str) -> ConfigFields:
        """Read a nested object; an absent one is empty."""
        return self.section(key) or self.nested(key, {})

    def nested(self, key: str, values: dict[str, Any]) -> ConfigFields:
        """Return an object inside of this one; `key` names it in errors."""
        return ConfigFields(f"{self._source}: {key:.200}", values)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Read one token id or a list of them; absent and -1 are empty."""
        value = self.raw(key)
        if value is None or value == -1:
            return ()
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
            raise self.refuse(key, value, "a token id or a list of token ids, each an integer of at least 0")
        return tuple(ids)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MAX_NUMBER
