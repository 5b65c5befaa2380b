"""The command line `vllm`: what `serve` does where no flag says it."""

from __future__ import annotations

from baton.commands.cli_arguments import parse
from baton.vllm_alias.programs import defaults_of

ONE_ENGINE = {"mixed": 1, "prefill_workers": 0, "decode_workers": 0}
EVERYWHERE = {"host": "0.0.0.0", "grpc_port": 0}


def fields_of(*argv: str) -> dict[str, object]:
    args = vars(parse(argv, defaults_of(argv)))
    return {name: args[name] for name in (*ONE_ENGINE, *EVERYWHERE)}


def test_serve_has_one_engine_and_listens_on_all_interfaces() -> None:
    assert fields_of("serve") == {**ONE_ENGINE, **EVERYWHERE}


def test_a_number_of_workers_brings_the_ordinary_numbers_of_the_others() -> None:
    numbers = {"mixed": 0, "prefill_workers": 1, "decode_workers": 2}
    assert fields_of("serve", "--decode-workers=2") == {**EVERYWHERE, **numbers}


def test_flags_come_before_the_defaults() -> None:
    said = fields_of("serve", "--host", "127.0.0.1", "--grpc-port", "8100")
    assert said == {**ONE_ENGINE, "host": "127.0.0.1", "grpc_port": 8100}


def test_other_commands_keep_their_defaults() -> None:
    assert defaults_of(["router"]) == {}
    assert defaults_of([]) == {}
