"""`vllm` as an alias: defaults of its command line, and its table of modules."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.commands.cli_arguments import parse
from baton.vllm_alias.finder import homes_of, reason_of
from baton.vllm_alias.modules import MODULES, REASON_OF
from baton.vllm_alias.programs import defaults_of
from baton.vllm_alias.tokenizers import load_chat_template
from baton.vllm_alias.weight_transfer import (
    WeightTransferConfig,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
    packed_nccl_broadcast_producer,
    trainer_init,
)
from baton_core.errors import InvalidConfigError

PAGE = Path(__file__).parents[3] / "docs/as_vllm.md"
ONE_ENGINE = {"mixed": 1, "prefill_workers": 0, "decode_workers": 0}
EVERYWHERE = {"host": "0.0.0.0", "grpc_host": "127.0.0.1", "grpc_port": 0}


def parse_as_vllm(*argv: str) -> argparse.Namespace:
    return parse(argv, lambda given: defaults_of(argv, given))


def fields_of(*argv: str) -> dict[str, object]:
    args = vars(parse_as_vllm(*argv))
    return {name: args[name] for name in (*ONE_ENGINE, *EVERYWHERE)}


def test_serve_has_one_engine_and_listens_on_all_interfaces() -> None:
    assert fields_of("serve") == {**ONE_ENGINE, **EVERYWHERE}


def test_a_number_of_workers_brings_the_ordinary_numbers_of_the_others() -> None:
    numbers = {"mixed": 0, "prefill_workers": 1, "decode_workers": 2}
    assert fields_of("serve", "--decode-workers=2") == {**EVERYWHERE, **numbers}


def test_flags_come_before_the_defaults() -> None:
    addresses = ("--host", "127.0.0.1", "--grpc-host", "0.0.0.0", "--grpc-port", "8100")
    said = fields_of("serve", *addresses)
    assert said == {**ONE_ENGINE, "host": "127.0.0.1", "grpc_host": "0.0.0.0", "grpc_port": 8100}


def test_clients_ask_the_server_beside_them_unless_another_is_named() -> None:
    for command in (["chat"], ["complete", "hi"]):
        assert parse_as_vllm(*command).url == "http://localhost:8000/v1"
        command.append("--url=http://a/v1")
        assert parse_as_vllm(*command).url == "http://a/v1"
        command[-1:] = ["--address", "a:8100"]
        assert parse_as_vllm(*command).url is None


def test_a_file_says_what_the_command_line_says(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("decode-workers: 2\n")
    numbers = {"mixed": 0, "prefill_workers": 1, "decode_workers": 2}
    assert fields_of("serve", "--config", str(config)) == {**EVERYWHERE, **numbers}
    config.write_text("address: a:8100\n")
    assert parse_as_vllm("chat", "--config", str(config)).url is None


@pytest.mark.parametrize("topic", ["all", "workers"])
def test_help_shows_the_defaults(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_as_vllm("serve", f"--help={topic}")
    page = capsys.readouterr().out
    assert "prefill workers (default 0)" in page
    assert "workers that do both (default 1)" in page


def test_other_commands_keep_their_defaults() -> None:
    assert defaults_of(["router"], set()) == {}
    assert defaults_of([], set()) == {}


def test_the_page_lists_the_names_of_each_module() -> None:
    rows = re.findall(r"^\| `(vllm[\w.]*)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}
    assert listed == {module: set(homes_of(module)) for module in MODULES if homes_of(module)}


@pytest.mark.parametrize("function", [trainer_init, packed_nccl_broadcast_producer])
def test_weights_over_nccl_are_refused_when_they_are_to_be_sent(function: Callable[..., object]) -> None:
    with pytest.raises(InvalidConfigError, match=rf"{function.__name__} is not supported.*update_weights"):
        function({"master_address": "10.0.0.1"}, group=None)


def test_requests_of_weights_have_their_fields_in_vllms_order_and_its_defaults() -> None:
    assert WeightTransferConfig().backend == "nccl"
    assert WeightTransferInitRequest() == WeightTransferInitRequest(init_info={})
    assert WeightTransferUpdateRequest({"path": "/m"}).update_info == {"path": "/m"}


def test_a_chat_template_is_that_of_a_file_or_given_itself(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    for given, is_literal, template in (
        (None, False, None),
        (file, False, "{{ messages }}"),
        ("{{ a }}", False, "{{ a }}"),
        (str(file), True, str(file)),
    ):
        assert load_chat_template(given, is_literal=is_literal) == template


def test_a_module_below_another_has_a_reason_of_its_own() -> None:
    assert "finish_reason" in reason_of("vllm.v1.engine.FinishReason")
    for name in ("vllm.v1.engine.core.EngineCoreProc", "vllm.v1.engine.utils.CoreEngineProcManager"):
        assert "internal to vLLM" in reason_of(name)


def test_reasons_are_whole() -> None:
    assert [reason for reason in REASON_OF.values() if len(reason.split()) < 4] == []
    assert "vllm" in REASON_OF, "every module is below it"
