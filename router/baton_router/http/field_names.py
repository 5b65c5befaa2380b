"""Names of fields in errors: what a body becomes has other names than the body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from baton_core.errors import InvalidRequestError

_INDEX: Final = re.compile(r"\[\d+\]")


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Name fields in the block's errors as its caller does; `names` has the caller's by the block's;
    `[]` in both is any index.

    Raises:
        InvalidRequestError: one that the block raises.
    """
    try:
        yield
    except InvalidRequestError as error:
        if (name := names.get(_INDEX.sub("[]", error.field))) is not None:
            indexes = iter(_INDEX.findall(error.field))
            name = re.sub(r"\[\]", lambda _: next(indexes), name)
            error.args = (str(error).replace(error.field, name, 1),)
            error.field = name
        raise
