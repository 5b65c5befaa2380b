"""Command lines of vLLM: every spelling is read, every server flag works, changes nothing, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.cli import main
from baton.commands.cli_arguments import parse, router_flags, settle
from baton.commands.neutral_flags import ENGINE_FIXED, ENGINE_TAKEN
from baton.commands.spelling import written_out
from baton.commands.vllm_server_flags import OTHER_NAMES, REFUSED_COMMANDS, SERVER_FIXED, TAKEN
from baton.config.engine_args import BUNDLED_MODEL
from baton.config.fixed_engine_args import SHORT_FLAGS, Fixed
from baton_core.errors import InvalidConfigError

DOCUMENTED = (
    "--headless --api-server-count --config --grpc --lora-modules --chat-template "
    "--chat-template-content-format --trust-request-chat-template --default-chat-template-kwargs "
    "--response-role --return-tokens-as-token-ids --enable-auto-tool-choice "
    "--exclude-tools-when-tool-choice-none --tool-call-parser --tool-parser-plugin --tool-server "
    "--log-config-file --max-log-len --enable-prompt-tokens-details --enable-per-request-metrics "
    "--enable-server-load-tracking --enable-force-include-usage --enable-log-outputs "
    "--enable-log-deltas --log-error-stack --host --port --uds --uvicorn-log-level "
    "--disable-uvicorn-access-log --disable-access-log-for-endpoints --allow-credentials "
    "--allowed-origins --allowed-methods --allowed-headers --api-key --ssl-keyfile --ssl-certfile "
    "--ssl-ca-certs --enable-ssl-refresh --ssl-cert-reqs --ssl-ciphers --root-path --middleware "
    "--enable-request-id-headers --disable-fastapi-docs --h11-max-incomplete-event-size "
    "--h11-max-header-count --enable-offline-docs --disable-log-stats --enable-log-requests "
    "--enable-scale-out --disable-log-requests --seed --model --data-parallel-supervisor-port "
    "--fingerprint-mode --fingerprint-value --disable-frontend-multiprocessing --served-model-name "
    "--tokens-only"
)
"""Flags of vLLM's server beside those of its engine."""


OWN = {
    "--quantization": ("quantization", "int8"),
    "--tensor-parallel-size": ("tensor_parallel_size", 2),
    "--pipeline-parallel-size": ("pipeline_parallel_size", 3),
    "--enable-expert-parallel": ("enable_expert_parallel", True),
    "--nnodes": ("nnodes", 2),
    "--node-rank": ("node_rank", 1),
    "--api-server-count": ("router_processes", 2),
    "--data-parallel-size": ("data_parallel_size", 2),
    "--data-parallel-rank": ("data_parallel_rank", 1),
    "--data-parallel-start-rank": ("data_parallel_start_rank", 1),
    "--data-parallel-size-local": ("data_parallel_size_local", 2),
    "--speculative-config": ("speculative_config", {"method": "ngram", "num_speculative_tokens": 3}),
    "--data-parallel-hybrid-lb": ("data_parallel_hybrid_lb", True),
    "--data-parallel-external-lb": ("data_parallel_external_lb", True),
}
"""Flags with short forms that do something here."""


def taken(*flags: str) -> tuple[str, ...]:
    names: tuple[str, ...] = parse(["serve", *flags]).neutral_flags
    return names


@pytest.mark.parametrize("flag", DOCUMENTED.split())
def test_no_documented_flag_of_the_server_is_unknown(flag: str) -> None:
    own = {name for name in dir(parse(["serve"])) if not name.startswith("_")}
    known = {
        *TAKEN,
        *SERVER_FIXED,
        *OTHER_NAMES,
        *ENGINE_FIXED,
        *(f"--{name.replace('_', '-')}" for name in own),
    }
    assert flag in known


@pytest.mark.parametrize("short", SHORT_FLAGS)
def test_a_short_form_is_the_flag_with_one_value(short: str) -> None:
    flag = SHORT_FLAGS[short]
    if flag in OWN:
        field, value = OWN[flag]
        given = (
            [short]
            if value is True
            else [short, json.dumps(value) if isinstance(value, dict) else str(value)]
        )
        assert getattr(parse(["serve", *given]), field) == value
        return
    if flag in ENGINE_TAKEN:
        assert taken(short, "unheard-of") == (flag,)
        return
    fixed = {**ENGINE_FIXED, **SERVER_FIXED}[flag]
    with pytest.raises(InvalidConfigError, match=rf"^{flag} is .*; allowed: "):
        parse(["serve", f"{short}=unheard-of"])
    if not isinstance(fixed.default, bool) and fixed.default is not None:
        assert taken(short, str(fixed.default)) == (flag,)


def test_an_option_of_optimization_is_read_in_every_form() -> None:
    for form in (["-O3"], ["-O", "3"], ["-O=3"]):
        assert taken(*form) == ("--optimization-level",)
    assert taken("-O.mode", "3") == ("--compilation-config",)


def test_a_switch_without_effect_takes_no_value() -> None:
    args = parse(["serve", "--trust-remote-code", "--no-enable-chunked-prefill", "org/m"])
    assert args.neutral_flags == ("--trust-remote-code", "--enable-chunked-prefill")
    assert args.model == "org/m"


@pytest.mark.parametrize("values", [["1"], ["1", "2", "4"], ["1", "2", "--seed=0"]])
def test_a_list_without_effect_takes_all_its_values(values: list[str]) -> None:
    args = parse(["serve", "org/m", "--cudagraph-capture-sizes", *values])
    assert args.neutral_flags == ("--cudagraph-capture-sizes",)
    assert args.model == "org/m"


def test_dotted_keys_make_one_json_object() -> None:
    given = ["--a_b.c_d", "1", "--a-b.e.f=true", "--a-b.list+", "x,y", "--a-b.size", "2k", "--other", "a.b"]
    assert written_out(given, SHORT_FLAGS, has_model=False) == [
        "--other",
        "a.b",
        '--a-b={"c_d": 1, "e": {"f": true}, "list": ["x", "y"], "size": 2000}',
    ]
    args = parse(["serve", "--profiler_config.torch_profiler_dir", "/traces"])
    assert args.profiler_config == {"torch_profiler_dir": "/traces"}
    with pytest.raises(InvalidConfigError, match="no value of 'c' beside its keys"):
        written_out(["--a.c", "1", "--a.c.d", "2"], SHORT_FLAGS, has_model=False)
    with pytest.raises(InvalidConfigError, match=r"^--a.c has no value; allowed: one behind it"):
        written_out(["--a.c"], SHORT_FLAGS, has_model=False)
    with pytest.raises(InvalidConfigError, match=r"^--a-b is given beside --a-b.KEY; allowed: one object"):
        written_out(['--a_b={"z":1}', "--a-b.c", "1"], SHORT_FLAGS, has_model=False)


def test_the_model_may_be_a_flag_and_underscores_are_dashes() -> None:
    args = parse(["serve", "--max_model_len=10", "--served_model_name", "a", "b", "--model", "org/m"])
    assert (args.model, args.max_model_len, args.served_model_name) == ("org/m", 10, ("a", "b"))
    assert parse(["decode-worker", "--model=org/m"]).model == "org/m"
    assert parse(["serve"]).model == BUNDLED_MODEL


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_the_length_that_fits_is_asked_for_by_word(length: str) -> None:
    assert parse(["serve", "--max-model-len", "8", "--max-model-len", length]).max_model_len is None


@pytest.mark.parametrize(
    "flag", ["--enforce-eager", "--batch-invariant", "--allow-credentials", "--enable-log-requests"]
)
def test_every_switch_can_be_turned_off(flag: str) -> None:
    field = flag.removeprefix("--").replace("-", "_")
    assert getattr(parse(["serve", flag]), field) is True
    assert getattr(parse(["serve", flag, flag.replace("--", "--no-", 1)]), field) is False


@pytest.mark.parametrize(
    "flag", [name for name, one in ENGINE_FIXED.items() if isinstance(one.default, bool)]
)
def test_every_switch_of_the_engine_that_is_not_there_can_be_turned_off(flag: str) -> None:
    off = flag if ENGINE_FIXED[flag].default else flag.replace("--", "--no-", 1)
    assert taken(off, "--port", "1") == (flag,)


@pytest.mark.parametrize("flag", TAKEN)
def test_a_flag_that_changes_nothing_is_taken_and_named(flag: str) -> None:
    value = () if TAKEN[flag].is_switch else ("x",)
    assert taken(flag, *value, "org/m") == (flag,)
    assert parse(["serve", flag, *value, "org/m"]).model == "org/m"


@pytest.mark.parametrize(("flag", "fixed"), SERVER_FIXED.items())
def test_a_flag_of_the_server_with_one_value_is_refused_with_the_reason(flag: str, fixed: Fixed) -> None:
    given = [flag] if isinstance(fixed.default, bool) else [flag, "unheard-of"]
    with pytest.raises(InvalidConfigError) as refused:
        parse(["router", *given])
    assert str(refused.value).startswith(f"{flag} is ")
    assert str(refused.value).endswith(f"({fixed.reason})")
    if fixed.default not in (None, True, False):
        assert taken(f"{flag}={json.dumps(fixed.default)}") == (flag,)


@pytest.mark.parametrize("name", REFUSED_COMMANDS)
def test_a_command_that_only_vllm_has_is_refused_with_the_reason(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--flag", "x"]) == 2
    assert capsys.readouterr().err == f"baton: baton has no command {name}: {REFUSED_COMMANDS[name]}\n"


def test_other_names_are_those_of_flags() -> None:
    args = parse(["serve", "--enable-log-requests", "--disable-log-requests"])
    assert args.enable_log_requests is False
    assert parse(["router", "--h11-max-incomplete-event-size", "2048"]).max_header_bytes == 2048
    assert parse(["chat", "--system-prompt", "be brief", "-q", "hi"]).system == "be brief"
    assert parse(["complete", "-q", "hi"]).prompt == ["hi"]


def test_what_stands_behind_two_dashes_stays_as_it_is() -> None:
    prompts = ["--my_prompt", "-q", "--help"]
    assert parse(["complete", "--n", "2", "--", *prompts]).prompt == prompts
    written = written_out(["--a.b", "1", "--", "--c_d"], SHORT_FLAGS, has_model=False)
    assert written == ['--a={"b": 1}', "--", "--c_d"]


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        (["--allowed-origins", '["*"]'], ("*",)),
        (["--allowed-origins", '["http://a", "http://b"]', "--allowed-origins", "http://c"], None),
        (["--allowed-origins", "*"], ("*",)),
        (["--allowed-origins", "[]"], ()),
    ],
)
def test_origins_are_taken_as_json_too(given: list[str], origins: tuple[str, ...] | None) -> None:
    expected = ("http://a", "http://b", "http://c") if origins is None else origins
    assert parse(["serve", *given]).allowed_origins == expected


@pytest.mark.parametrize("value", ["[", "[1]", '["a", null]'])
def test_a_json_list_of_something_else_is_refused(value: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^--allowed-origins is .*; allowed: text in UTF-8"):
        parse(["serve", "--allowed-origins", value])


@pytest.mark.parametrize(("given", "seed"), [((), None), (("--seed", "0"), 0)])
def test_only_a_seed_that_is_given_makes_seeds_follow_from_it(
    given: tuple[str, ...], seed: int | None
) -> None:
    args = parse(["serve", *given])
    settle(args)
    assert parse(["router", *router_flags(args)]).seed == seed


def test_what_the_router_of_serve_is_given_says_the_same() -> None:
    flags: dict[str, Any] = {
        "--seed": 7,
        "--uds": "/run/baton.sock",
        "--response-role": "bot",
        "--max-log-len": 9,
        "--sse-keep-alive-interval": 0.0,
        "--chat-template-content-format": "string",
        "--ssl-ciphers": "AES256-SHA256",
    }
    switches = ["--disable-fastapi-docs", "--enable-force-include-usage", "--return-tokens-as-token-ids"]
    given = [f"{name}={value}" for name, value in flags.items()]
    kwargs = '--default-chat-template-kwargs={"enable_thinking": false}'
    args = parse(["serve", *given, *switches, kwargs, "--middleware=a.B", "--middleware", "c:d"])
    router = parse(["router", *router_flags(args)])
    for name, value in flags.items():
        assert getattr(router, name[2:].replace("-", "_")) == value
    assert router.default_chat_template_kwargs == {"enable_thinking": False}
    assert router.middleware == ("a.B", "c:d")
    assert router.disable_fastapi_docs
    assert router.enable_force_include_usage
    assert router.return_tokens_as_token_ids
    assert not router.exclude_tools_when_tool_choice_none
