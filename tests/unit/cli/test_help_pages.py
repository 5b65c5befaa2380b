"""Help: an overview of groups, one group, flags by a word, or all flags."""

from __future__ import annotations

import pytest

from baton.cli import main
from baton.commands.cli_arguments import parse
from baton.commands.command_flags import COMMANDS, Command

LONG = [command for command in COMMANDS if len(command.groups) > 5]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", LONG, ids=lambda command: command.name)
@pytest.mark.parametrize("topic", ["--help", "-h", "--help=listgroup"])
def test_a_long_command_shows_its_groups_with_a_line_each(
    command: Command, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, command.name, topic).splitlines()
    assert lines[0] == f"usage: baton {command.name} [MODEL] [--config FILE] [flags]"
    for group in command.groups:
        assert sum(line.split() == [group.name, *group.help.split()] for line in lines) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_all_of_help_has_every_flag(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    if command.groups:
        page = shown(capsys, command.name, "--help=all")
        assert [
            flag.name for flag in command.flags if flag.name.startswith("-") and flag.name not in page
        ] == []


@pytest.mark.parametrize("command", LONG, ids=lambda command: command.name)
def test_a_group_is_shown_alone(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for group in command.groups[1:]:
        page = shown(capsys, command.name, f"--help={group.name.upper()}")
        assert page.startswith(f"{group.name}:\n  {group.help}\n")
        assert [flag.name for flag in group.flags if flag.name not in page] == []


def test_flags_are_found_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "serve", "--help=max_num_seqs")
    assert "--max-num-seqs" in page
    assert "--port" not in page
    page = shown(capsys, "serve", "--help=parallel")
    assert "  --decode-context-parallel-size: 1 (a worker's ranks are parts" in page
    assert "--enable-ssl-refresh" in shown(capsys, "serve", "--help=vllm")


def test_benchmarks_have_help_by_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, "bench", "serve", "--help=num-prompts")
    assert page.startswith("serve:\n")
    assert "--num-prompts" in page
    assert "--goodput" not in page
    assert "--max-num-seqs" in shown(capsys, "bench", "latency", "--help=all")


def test_a_short_command_is_described_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Run a command in whose processes vllm is Baton." in shown(capsys, "as-vllm", "--help")


@pytest.mark.parametrize("words", ["", "admin", "admin set-role", "collect-env", "as-vllm", "bench"])
def test_a_short_page_is_shown_whole_whatever_is_asked(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = shown(capsys, *words.split(), "--help=all")
    assert page == shown(capsys, *words.split(), "--help=address") == shown(capsys, *words.split(), "--help")
    assert page.startswith(f"usage: baton {words}".rstrip())


def test_the_command_of_as_vllm_has_its_own_help() -> None:
    assert parse(["as-vllm", "python", "--help=all"]).words == ["python", "--help=all"]


def test_help_about_nothing_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help=ModelConfig"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("baton: --help is 'ModelConfig'; allowed: all, page, listgroup, model, ")
