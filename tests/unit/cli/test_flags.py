"""Every flag: what it takes, and that it refuses the rest by name, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli import main
from baton.commands.bench_arguments import BENCH_ACTIONS
from baton.commands.cli_arguments import (
    BUNDLED_MODEL,
    COMMANDS,
    Command,
    as_flags,
    parse,
    router_flags,
    worker_flags,
)
from baton.config.engine_args import EngineArgs
from baton.config.flags import BYTES, Flag, Pattern, Range
from baton.processes.secret_flags import SECRET_FLAGS
from baton_core.errors import InvalidConfigError

COMMAND_OF = {flag: command for command in COMMANDS for flag in command.flags if flag.name.startswith("--")}
OF_BENCHMARKS = {flag.name: flag for action in BENCH_ACTIONS for flag in action.flags}.values()
FLAGS_OF_BYTES = {flag.name: flag for flag in COMMAND_OF if flag.name.endswith("-bytes")}
HOSTILE_NUMBERS = ("", "0x10", "nan", "-inf", "1" * 400, "-" + "9" * 30, "\udcff", "½")
HOSTILE_TEXTS = ("\udcff", "a\udc80b", "a\0b")


def hostile_values(flag: Flag) -> tuple[str, ...]:
    if flag.kind in (int, float):
        return HOSTILE_NUMBERS
    if isinstance(flag.values, tuple | Pattern):
        return ("", "\n", "\0", "x" * 200, *HOSTILE_TEXTS)
    return HOSTILE_TEXTS


def shown(flag: Flag, value: str) -> str:
    """Return a value as an error writes it: as a number if it is one, and not where it is secret."""
    if value and flag.name in SECRET_FLAGS:
        return "a value that is not shown"
    try:
        return ascii(flag.kind(value))
    except ValueError:
        return ascii(value)


@pytest.mark.parametrize(
    "flag",
    [flag for flag in (*COMMAND_OF, *OF_BENCHMARKS) if flag.kind is not bool],
    ids=lambda flag: flag.name,
)
def test_hostile_values_are_refused_by_flag_value_and_what_is_allowed(flag: Flag) -> None:
    for value in hostile_values(flag):
        if isinstance(flag.values, Pattern) and value == "" == flag.default:
            continue  # the way to say nothing
        with pytest.raises(InvalidConfigError) as refused:
            flag.parse(value)
        said = str(refused.value)
        assert said.startswith(f"{flag.name} is ")
        assert said.endswith(f"; allowed: {flag.allowed}")
        assert shown(flag, value)[:16] in said
        assert len(said) < 450


ONE_OF_EACH_KIND = {
    (command.name, flag.kind, flag.is_list, flag.nargs, isinstance(flag.values, tuple)): (flag, command)
    for flag, command in COMMAND_OF.items()
}


@pytest.mark.parametrize(("flag", "command"), ONE_OF_EACH_KIND.values(), ids=lambda value: value.name)
def test_commands_say_what_their_flags_refuse(
    flag: Flag, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = ["prompt"] if command.name in ("complete", "explain") else []
    if flag.kind is bool:
        with pytest.raises(SystemExit) as ended:
            main([command.name, *prompt, f"{flag.name}=x"])
        assert ended.value.code == 2
        assert f"argument {flag.name}: ignored explicit argument 'x'" in capsys.readouterr().err
        return
    value = hostile_values(flag)[0]
    assert main([command.name, *prompt, f"{flag.name}={value}"]) == 2
    assert capsys.readouterr().err == f"baton: {flag.name} is {shown(flag, value)}; allowed: {flag.allowed}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("serve --port 65536", "--port is 65536; allowed: an integer from 0 to 65535"),
        ("serve --block-size 0", "--block-size is 0; allowed: an integer from 1 to 65536"),
        ("serve --mixed=-1", "--mixed is -1; allowed: an integer from 0 to 1024"),
        (
            "serve --gpu-memory-utilization 1.5",
            "--gpu-memory-utilization is 1.5; allowed: a finite number over 0 to 1",
        ),
        (
            "router --request-timeout 0",
            "--request-timeout is 0.0; allowed: a finite number over 0 to 1000000000",
        ),
        (
            "router --routing-policy random",
            "--routing-policy is 'random'; allowed: cost, round-robin, least-loaded, power-of-two, "
            "consistent-hash, prefix",
        ),
        ("router --split sometimes", "--split is 'sometimes'; allowed: auto, always, never"),
        ("mixed-worker --router nowhere", "--router is 'nowhere'; allowed: host:port"),
        ("mixed-worker --router a:99999", "--router is 'a:99999'; allowed: host:port with a port from 1 to"),
        ("complete --top-k=-2 a", "--top-k is -2; allowed: an integer from -1 to 2147483647"),
        (
            "chat --seed 9223372036854775808",
            "--seed is 9223372036854775808; allowed: an integer from -9223372036854775808 to ",
        ),
    ],
)
def test_a_value_out_of_range_is_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert said in capsys.readouterr().err


def test_text_that_looks_like_a_flag_comes_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["complete", "--x=a b"])
    said = "unrecognized arguments: --x=a b; text that begins with -- comes after an argument --"
    assert said in capsys.readouterr().err
    assert parse(["complete", "--", "--x=a b"]).prompt == ["--x=a b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "arguments are required: COMMAND"),
        ("fly", "invalid choice: 'fly'"),
        ("serve --no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("serve --max-num-seq 3", "unrecognized arguments: --max-num-seq"),
        ("serve --port", "argument --port: expected one argument"),
        ("explain", "arguments are required: ID"),
        (
            "serve --uvicron-log-level x",
            "unrecognized arguments: --uvicron-log-level; did you mean --uvicorn-log-level?",
        ),
        ("serve --max-num-seq=3", "--max-num-seq=3; did you mean --max-num-seqs?"),
        ("serve --tensor-paralel-size 3", "did you mean --tensor-parallel-size?"),
        ("chat --adress a:1", "did you mean --address?"),
        ("bench serve --num-prompt 3", "did you mean --num-prompts?"),
    ],
)
def test_an_unknown_flag_is_refused_with_a_suggestion_and_an_incomplete_command_line_too(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["complete", "--max-tokns=1 2", "hi"], "--max-tokns=1 2; did you mean --max-tokens?"),
        (["serve", "--foo.x", "1"], 'unrecognized arguments: --foo={"x": 1}'),
    ],
)
def test_an_unknown_flag_with_spaces_is_no_prompt_and_no_model(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(argv)
    assert said in capsys.readouterr().err


def test_a_batch_takes_flags_of_its_server_with_spaces_too() -> None:
    assert parse(["run-batch", "--hf-overrides.a", "1"]).serve_words == ['--hf-overrides={"a": 1}']
    assert parse(["run-batch", "--chat-template=a b"]).serve_words == ["--chat-template=a b"]


def test_a_prompt_may_begin_with_dashes() -> None:
    for prompt in ("--x y", "-- a=b c"):
        assert parse(["complete", prompt]).prompt == [prompt]
    assert parse(["complete", "--", "--x=a b"]).prompt == ["--x=a b"]


def test_what_serve_hands_on_is_what_its_children_take() -> None:
    given = parse(["serve", "m", "--dtype", "float32", "--port", "0", "--served-model-name", "a", "b"])
    router = parse(["router", *router_flags(given)])
    worker = parse(["mixed-worker", *worker_flags(given, num_workers=2)])
    assert (router.model, router.served_model_name, router.port) == ("m", ("a", "b"), 0)
    assert (worker.model, worker.dtype, worker.num_workers) == ("m", "float32", 2)
    assert worker.max_model_len is None


@pytest.mark.parametrize(
    "port", ["0", "00", "081", "65536", "99999", "100000", "-1", "\u0661\u0662", "1\n", ""]
)
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_address_to_dial_has_a_port_that_exists(
    host: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--address", f"{host}:{port}"]) == 2
    allowed = "host:port with a port from 1 to 65535"
    assert capsys.readouterr().err == f"baton: --address is {f'{host}:{port}'!a}; allowed: {allowed}\n"


@pytest.mark.parametrize("port", [1, 9, 10, 9999, 10000, 59999, 64999, 65499, 65529, 65535])
def test_every_port_can_be_dialed(port: int) -> None:
    assert parse(["chat", "--address", f"router:{port}"]).address == f"router:{port}"


@pytest.mark.parametrize("model", ["./model", "/models/llama", "Qwen/Qwen3-0.6B", "folder"])
@pytest.mark.parametrize("command", ["serve", "router"])
def test_a_model_behind_the_served_names_is_not_taken_for_one(
    command: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main([command, "--served-model-name", "a", model, "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert f"--served-model-name is {model!r} and MODEL is left out; allowed: MODEL before the names" in said
    args = parse([command, model, "--served-model-name", "a", "org/b"])
    assert (args.model, args.served_model_name) == (model, ("a", "org/b"))


def test_names_of_the_bundled_model_need_no_model() -> None:
    args = parse(["serve", "--served-model-name", "org/a", "b"])
    assert (args.model, args.served_model_name) == (BUNDLED_MODEL, ("org/a", "b"))


def test_the_bundled_model_has_a_name_and_others_have_the_one_that_was_given() -> None:
    for command in ("serve", "router", "decode-worker"):
        assert parse([command]).served_model_name == ("baton-docs-5m",)
    serve = parse(["serve"])
    for flags in (router_flags(serve), worker_flags(serve, num_workers=2)):
        assert "--served-model-name=baton-docs-5m" in flags
    assert parse(["serve", "/a/folder"]).served_model_name == ()


def test_a_repeated_flag_gathers_its_values() -> None:
    args = parse(["decode-worker", "--router", "a:1", "--router", "[::1]:2"])
    assert args.router == ("a:1", "[::1]:2")
    args = parse(["router", "m", "--served-model-name", "a", "b"])
    assert args.served_model_name == ("a", "b")


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("block_size is 7; allowed: 8", "--block-size is 7; allowed: 8"),
        ("memory_share is 2; allowed: 1", "--gpu-memory-utilization is 2; allowed: 1"),
        ("no field at all", "no field at all"),
        ("model is 'x'; allowed: y", "model is 'x'; allowed: y"),
    ],
)
def test_errors_name_the_flag_of_their_field(message: str, named: str) -> None:
    assert as_flags(message) == named


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "baton 0.1.0\n"


def test_a_flag_checks_what_a_file_gives_by_kind() -> None:
    flag = Flag("--share", float, 0.5, "a share", Range(0, 1))
    assert flag.check(1, "share") == 1.0
    for value in (True, "0.5", None, 10**400, [0.5]):
        with pytest.raises(InvalidConfigError, match=r"share is .*; allowed: a finite number from 0 to 1"):
            flag.check(value, "share")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1048576", 2**20),
        ("500k", 500_000),
        ("500K", 500 * 2**10),
        ("3m", 3 * 10**6),
        ("3M", 3 * 2**20),
        ("1g", 10**9),
        ("1G", 2**30),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1Ki", 1024),
        ("1KiB", 1024),
        ("1kiB", 1024),
        ("1.5GiB", 3 * 2**29),
        ("1.5 GiB", 3 * 2**29),
        ("4.35GB", 4_350_000_000),
        ("0.3GiB", 322_122_547),
        ("2TiB", 2**41),
        ("4096B", 4096),
    ],
)
def test_sizes_have_units(text: str, num_bytes: int, tmp_path: Path) -> None:
    assert parse(["serve", "--kv-cache-memory-bytes", text]).kv_cache_memory_bytes == num_bytes
    config = tmp_path / "baton.yaml"
    config.write_text(f"kv-cache-memory-bytes: {text}\n")
    assert parse(["mixed-worker", "--config", str(config)]).kv_cache_memory_bytes == num_bytes
    assert EngineArgs(kv_cache_memory_bytes=num_bytes).kv_cache_memory_bytes == num_bytes


def test_all_flags_of_bytes_take_units() -> None:
    args = parse(
        ["serve", "--max-body-bytes", "8MiB", "--max-header-bytes", "32Ki", "--max-answer-bytes", "1GB"]
    )
    assert (args.max_body_bytes, args.max_header_bytes) == (8 * 2**20, 32 * 2**10)
    plain = [name for name, flag in FLAGS_OF_BYTES.items() if flag.suffixes is not BYTES]
    assert args.max_answer_bytes == 10**9
    assert (len(FLAGS_OF_BYTES), plain) == (7, [])


@pytest.mark.parametrize(
    "text",
    [
        "1.5",
        "1.5B2",
        "GiB",
        "1Gb",
        "1gigabyte",
        "1XiB",
        "1iB",
        "-1G",
        "1e9",
        "1,5G",
        "1G ",
        "0k",
        "0.4B",
        "9000T",
    ],
)
def test_what_is_no_size_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = f"an integer from 1 to {2**50}, or as 500M, 1.5GiB or 2GB"
    assert main(["serve", f"--kv-cache-memory-bytes={text}"]) == 2
    assert capsys.readouterr().err == f"baton: --kv-cache-memory-bytes is {text!r}; allowed: {allowed}\n"


def test_a_size_out_of_range_is_refused_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "baton.yaml"
    config.write_text("max-body-bytes: 4GiB\n")
    assert main(["router", "--config", str(config)]) == 2
    said = f"{config}: max-body-bytes is '4GiB'; allowed: an integer from 1 to 2147483647, or as 500M"
    assert said in capsys.readouterr().err
