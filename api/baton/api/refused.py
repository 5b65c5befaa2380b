"""Methods and arguments of vLLM's that Baton has not: each says why when it is used."""

from __future__ import annotations

from typing import Final, NoReturn

from baton_core.errors import InvalidConfigError, InvalidRequestError

_REASONS: Final = {
    "lora_request": "adapters are for models that generate",
    "prompt_adapter_request": "of adapters there are LoRA ones",
    "mm_processor_kwargs": "models of text alone are supported",
    "data_parallel_rank": "Baton chooses the worker",
    **dict.fromkeys(
        ("delay_iterations", "max_iterations"), "a trace is of all between start_profile and stop_profile"
    ),
}


class Refused:
    """A method that raises InvalidConfigError with its name and the reason, whatever it is given."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse.

        Raises:
            InvalidConfigError: always.
        """
        raise InvalidConfigError(f"{self._name} is not supported: {self._reason}")


def refuse_unsupported(**values: object) -> None:
    """Refuse arguments of requests that ask for what there is not; None and what is empty ask for nothing.

    Raises:
        InvalidRequestError: naming the argument, its value, what is allowed and why.
    """
    for name, value in values.items():
        parts = value if isinstance(value, list | tuple) else [value or None]
        if any(part is not None for part in parts):
            raise InvalidRequestError(name, value, f"None: {_REASONS[name]}")
