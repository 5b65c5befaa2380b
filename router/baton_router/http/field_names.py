"""Names of fields in errors: what a body becomes has other names than the body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton_core.errors import InvalidRequestError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Name fields in the block's errors as its caller does; `names` has the caller's by the block's.

    Raises:
        InvalidRequestError: one that the block raises.
    """
    try:
        yield
    except InvalidRequestError as error:
        if (name := names.get(error.field)) is not None:
            error.args = (str(error).replace(error.field, name, 1),)
            error.field = name
        raise
