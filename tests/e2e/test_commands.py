"""The commands for people, as processes: `chat`, `complete`, `--config`, `collect-env`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from baton import LLM
from baton.commands.cli_arguments import BUNDLED_MODEL
from baton_router.text.chat_template import Conversation
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.e2e.calls import greedy
from tests.e2e.processes import BATON, Cluster

QUESTIONS = ("What is JSON?", "And what does str.split do?")
TIMING = r"\[TTFT [\d.]+ ms, \d+ tokens in [\d.]+ ms: [\d.]+ tokens/s\]"


def test_a_scripted_chat_answers_with_its_history(cluster: Cluster, llm: LLM) -> None:
    command = [*BATON, "chat", "--address", cluster.address, "--temperature", "0", "--max-tokens", "24"]
    script = "".join(f"{question}\n" for question in QUESTIONS)
    ended = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=True)
    tokenizer = Tokenizer(read_model_folder(Path(BUNDLED_MODEL)))
    messages: tuple[dict[str, str], ...] = ()
    expected = []
    for question in QUESTIONS:
        messages += ({"role": "user", "content": question},)
        prompt = tokenizer.encode_prompt(Conversation(messages=messages))
        (output,) = llm.generate(prompt, greedy(24, ignore_eos=False), use_tqdm=False)
        messages += ({"role": "assistant", "content": output.outputs[0].text},)
        expected += [f"> {question}", *output.outputs[0].text.split("\n"), "[timing]"]
    assert re.sub(TIMING, "[timing]", ended.stdout).split("\n") == [*expected, ""]
    cluster.wait_until_idle()


def test_an_interrupt_ends_the_answer_and_not_the_chat(cluster: Cluster) -> None:
    command = [*BATON, "chat", "--address", cluster.address, "--temperature", "0", "--max-tokens", "2000"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"What is JSON?\n")
        chat.stdin.flush()
        printed = b""
        while len(printed) < len("> What is JSON?\n") + 1:
            printed += os.read(chat.stdout.fileno(), 1)
        chat.send_signal(signal.SIGINT)
        rest, said = chat.communicate(b"/reset\nWhat does str.split do?\n", timeout=60)
    assert (chat.returncode, said) == (0, b"")
    lines = rest.decode().split("\n")
    cancelled = next(line for line in lines if line.startswith("[cancelled, TTFT "))
    assert lines[lines.index(cancelled) + 1 :][:2] == ["> /reset", "[the conversation starts anew]"]
    assert re.fullmatch(TIMING, lines[-2])
    cluster.wait_until_idle()


def test_a_chat_that_fills_the_context_is_told_so(cluster: Cluster) -> None:
    command = [*BATON, "chat", "--address", cluster.address]
    script = "os.path " * 3000 + "\n"
    ended = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    limit = cluster.info().max_model_len
    assert ended.returncode == 1
    error = rf"baton chat: the conversation has \d+ tokens; allowed: {limit - 1}\. /reset starts a new one\n"
    assert re.search(error, ended.stderr)


def test_output_that_nobody_reads_ends_a_command_quietly(cluster: Cluster) -> None:
    to_cluster = ("--address", cluster.address)
    commands = (("--help",), ("collect-env",), ("complete", *to_cluster, "import os"), ("chat", *to_cluster))
    for arguments in commands:
        unread, end = os.pipe()
        os.close(unread)
        ended = subprocess.run(
            [*BATON, *arguments],
            input=b"What is JSON?\n",
            stdout=end,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(end)
        assert (ended.returncode, ended.stderr) == (1, b""), arguments
    cluster.wait_until_idle()


def test_a_configuration_file_stands_in_for_flags(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "client.yaml"
    config.write_text(f"address: {cluster.address}\nmax-tokens: 3\ntemperature: 0\n")
    command = [*BATON, "complete", "--config", str(config)]
    for flags, num_tokens in (((), 3), (("--max-tokens", "5"), 5)):
        arguments = [*command, *flags, "import os"]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
        assert f"cached), {num_tokens} new | " in ended.stdout


def test_the_environment_is_described_without_loading_torch_or_telling_secrets() -> None:
    environment = {**os.environ, "HF_TOKEN": "hf_0123456789abcdef", "OMP_NUM_THREADS": "2"}
    command = [BATON[0], "-X", "importtime", *BATON[1:], "collect-env"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert re.search(r"^  torch: \d", ended.stdout, re.MULTILINE)
    assert {"  OMP_NUM_THREADS: 2", "  HF_TOKEN: (redacted)"} <= set(ended.stdout.splitlines())
    assert "hf_0123456789abcdef" not in ended.stdout
    assert not re.search(r"\| +torch$", ended.stderr, re.MULTILINE)
