"""Agents and clients from npm, installed as their users install them, answered by a server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.processes import KV_CACHE_BYTES, ONE_MIXED, serving

pytestmark = [
    pytest.mark.skipif("BATON_TOOLS_CHECK" not in os.environ, reason="make tools-check runs it"),
    pytest.mark.timeout(900),
]
PACKAGES: Final = (
    *("@anthropic-ai/claude-code", "@openai/codex", "opencode-ai"),
    *("ai", "@ai-sdk/anthropic", "@ai-sdk/openai"),
)
WITHIN_S: Final = 300.0
NAME: Final = "baton"
TEMPLATE: Final = """
{%- for message in messages[1:] if message.role == 'system' -%}
{{- raise_exception('System message must be at the beginning.') -}}
{%- endfor -%}
{{- '<|im_start|>user\n' + messages[-1].content + '<|im_end|>\n<|im_start|>assistant\n' -}}
"""
"""The tools of an agent are more than the bundled model can read; what it is asked last, it answers."""
FLAGS: Final = (
    *(*ONE_MIXED, "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--served-model-name", NAME),
    *("--hf-overrides", '{"max_position_embeddings": 8192}'),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
AI_SDK: Final = """
import {generateText} from 'ai'
import {createAnthropic} from '@ai-sdk/anthropic'
import {createOpenAI} from '@ai-sdk/openai'
globalThis.AI_SDK_LOG_WARNINGS = false
const [baseURL, name] = process.argv.slice(2)
const models = [createAnthropic({baseURL, apiKey: '-'})(name), createOpenAI({baseURL, apiKey: '-'})(name)]
const messages = [{role: 'user', content: 'The first question'}]
const used = []
for (const model of models) {
  const first = await generateText({model, messages})
  const later = [...messages, ...first.response.messages, {role: 'user', content: 'The second'}]
  const second = await generateText({model, messages: later})
  used.push([first, second].map(({text, usage}) => ({text, ...usage})))
}
console.log(JSON.stringify(used))
"""
"""Two turns with each provider; the first answer goes back as the provider sends it."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages."""
    folder = tmp_path_factory.mktemp("npm")
    install = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES)
    subprocess.run(install, check=True, capture_output=True, timeout=WITHIN_S)
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    with serving(folder / "server", *FLAGS, "--chat-template", str(template)) as cluster:
        yield f"http://127.0.0.1:{cluster.http_address.rpartition(':')[2]}"


def printed(command: tuple[str | Path, ...], folder: Path, **environment: str) -> str:
    """Return what a command prints that runs in an empty folder, which is its home as well."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_claude_code_is_answered(packages: Path, url: str, tmp_path: Path) -> None:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL")
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "-",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **dict.fromkeys(names, NAME),
    }
    command = (packages / "node_modules/.bin/claude", "-p", "Say hello.", "--output-format", "json")
    said = json.loads(printed(command, tmp_path, **environment))
    assert not said["is_error"]
    assert said["result"]
    assert said["usage"]["output_tokens"] > 0


def test_codex_is_answered(packages: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f'model = "{NAME}"\nmodel_provider = "baton"\n'
        f'[model_providers.baton]\nname = "Baton"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
    )
    command = (packages / "node_modules/.bin/codex", "exec", "--json", "--skip-git-repo-check", "Say hello.")
    events = [json.loads(line) for line in printed(command, tmp_path, CODEX_HOME=str(tmp_path)).splitlines()]
    assert events[-1]["type"] == "turn.completed", events[-1]
    assert events[-1]["usage"]["output_tokens"] > 0
    assert any(event.get("item", {}).get("type") == "agent_message" for event in events)


def test_opencode_is_answered(packages: Path, url: str, tmp_path: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "-"},
        "models": {NAME: {}},
    }
    (tmp_path / "opencode.json").write_text(json.dumps({"provider": {"baton": provider}}))
    command = (packages / "node_modules/.bin/opencode", "run", "--model", f"baton/{NAME}")
    events = printed((*command, "--format", "json", "Say hello."), tmp_path).splitlines()
    assert any(json.loads(event)["type"] == "text" for event in events), events


def test_the_sdk_of_vercel_holds_conversations(packages: Path, url: str) -> None:
    program = packages / "conversations.mjs"
    program.write_text(AI_SDK)
    used = json.loads(printed(("node", program, f"{url}/v1", NAME), packages))
    for first, second in used:
        assert first["text"]
        assert second["text"]
