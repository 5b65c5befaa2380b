"""The parser of vLLM's scripts, with the flags of an engine and with others."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from baton import EngineArgs
from baton.vllm_alias.argument_parser import FlexibleArgumentParser

CONFIG = """
max-num-seqs: 7
enforce_eager: true
enable-prefix-caching: false
hf-overrides:
  a: 1
served-model-name: [one, other]
seed: null
"""


def parser() -> FlexibleArgumentParser:
    made = FlexibleArgumentParser(add_json_tip=True)
    EngineArgs.add_cli_args(made)
    made.add_argument("--words", nargs="+", default=[])
    made.add_argument("--trace", action="store_true")
    return made


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(*argv: str) -> argparse.Namespace:
    return parser().parse_args(argv)


@pytest.mark.parametrize("joint", [False, True])
def test_a_file_gives_values_for_flags(tmp_path: Path, joint: bool) -> None:
    path = write(tmp_path / "c.yaml", CONFIG + "words: [a, b]\ntrace: false\n")
    args = read(f"--config={path}") if joint else read("--config", path)
    assert (args.max_num_seqs, args.enforce_eager, args.enable_prefix_caching) == (7, True, False)
    assert (args.hf_overrides, list(args.served_model_name)) == ({"a": 1}, ["one", "other"])
    assert (args.words, args.trace, args.seed) == (["a", "b"], False, EngineArgs.seed)


def test_flags_of_the_command_line_win(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", CONFIG)
    flags = ("--max_num_seqs=9", "--no-enforce-eager", "--served-model-name", "mine")
    for argv in ((*flags, "--config", path), ("--config", path, *flags)):
        args = read(*argv)
        assert (args.max_num_seqs, args.enforce_eager) == (9, False)
        assert list(args.served_model_name) == ["mine"]
    assert read("--hf-overrides.b", "2", "--config", path).hf_overrides == {"b": 2}


def test_what_follows_a_command_is_the_command_s(tmp_path: Path) -> None:
    root = FlexibleArgumentParser()
    serve = root.add_subparsers(dest="command").add_parser("serve")
    serve.add_argument("what", nargs="?")
    serve.add_argument("--max-num-seqs", type=int)
    path = write(tmp_path / "c.yaml", "max_num_seqs: 7")
    args = root.parse_args(["serve", "this", "--config", path])
    assert (args.command, args.what, args.max_num_seqs) == ("serve", "this", 7)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--max-num-seqs", "abc"), "--max-num-seqs is 'abc'; allowed: an integer"),
        (("--max-num-se", "3"), "unrecognized arguments: --max-num-se 3"),
        (("--hf-overrides.a",), "--hf-overrides.a has no value; allowed: one behind it"),
        (("--config", "/nowhere.yaml"), "--config is '/nowhere.yaml', which cannot be read"),
        (("--config",), "--config is '', which cannot be read"),
        (("--config=a", "--config=b"), "--config is 'b' beside 'a'; allowed: one file"),
        (("--config", "{file}"), "unrecognized arguments: --port=12"),
    ],
)
def test_what_is_wrong_ends_with_the_usage(
    argv: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "c.yaml", "port: 12")
    with pytest.raises(SystemExit) as caught:
        read(*(argument.format(file=path) for argument in argv))
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: ")
    assert said in shown


def test_a_wrong_value_is_a_usage_error_of_any_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        EngineArgs.add_cli_args(argparse.ArgumentParser()).parse_args(["--max-num-seqs", "abc"])
    assert caught.value.code == 2
    assert "--max-num-seqs is 'abc'; allowed: an integer" in capsys.readouterr().err
