"""`baton as-vllm COMMAND...`: in the command's processes `vllm` is Baton, as a package and as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

AS_VLLM: Final = (sys.executable, "-m", "baton", "as-vllm")
DOCUMENTED: Final = (
    *("assets", "benchmarks", "collect_env", "compilation", "config", "connections", "cute_utils"),
    *("device_allocator", "distributed", "engine", "entrypoints", "env_override", "envs", "exceptions"),
    *("forward_context", "inputs", "ir", "kernels", "logger", "logging_utils", "logits_process", "logprobs"),
    *("lora", "model_executor", "model_inspection", "models", "multimodal", "outputs", "parser", "platforms"),
    *("plugins", "pooling_params", "profiler", "ray", "reasoning", "renderers", "sampling_params"),
    *("scalar_type", "sequence", "third_party", "tokenizers", "tool_parsers", "tracing"),
    *("transformers_utils", "triton_utils", "usage", "utils", "v1", "version", "vllm_flash_attn"),
)
"""Modules that vLLM's documents list."""
REFUSALS: Final = {
    "from vllm.config import CompilationMode": "vllm.config.CompilationMode is not in Baton: LLM takes",
    "from vllm.engine.arg_utils import get_kwargs": "vllm.engine.arg_utils.get_kwargs is not in Baton: it is",
    "from vllm.multimodal import MultiModalKwargs": "MultiModalKwargs is not in Baton: it belongs",
    "import vllm.model_executor.layers.linear": "vllm.model_executor.layers is not in Baton: it is",
    "from vllm.entrypoints.openai.api_server import run_server": "run_server is not in Baton: run it",
    "from vllm.entrypoints.chat_utils import parse_chat_messages": "not in Baton: messages are",
    "from vllm.v1.engine import FinishReason": "FinishReason is not in Baton: outputs have finish_reason as",
    "import vllm.nonsense": "vllm.nonsense is not in Baton: it is internal to vLLM",
}
"""The begin of the reason, or a part of it, by what is imported."""


def as_vllm(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command where `vllm` is Baton."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        (*AS_VLLM, *command),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )


def python(code: str, **variables: str) -> str:
    """Return what a program prints in which `vllm` is Baton."""
    done = as_vllm("python", "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_is_baton_and_says_which_vllm_it_stands_for() -> None:
    code = (
        "import baton, sys, vllm; from importlib.metadata import version\n"
        "assert 'torch' not in sys.modules\n"
        "assert vllm.SamplingParams is vllm.sampling_params.SamplingParams is baton.SamplingParams\n"
        "assert vllm.PoolingParams is vllm.pooling_params.PoolingParams is baton.PoolingParams\n"
        "print(vllm.__version__, version('vllm'), *vllm.__version_tuple__[:2])"
    )
    assert python(code) == "0.32.0+baton 0.32.0+baton 0 32"


def test_the_modules_that_vllm_documents_can_be_imported() -> None:
    code = f"from importlib import import_module\nfor name in {DOCUMENTED}: import_module('vllm.' + name)"
    assert python(code) == ""


def test_what_is_missing_gives_the_reason() -> None:
    code = (
        f"for statement in {list(REFUSALS)}:\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except ImportError as error:\n"
        "        print(error)"
    )
    for line, reason in zip(python(code).splitlines(), REFUSALS.values(), strict=True):
        assert reason in line


def test_variables_of_the_environment_are_read_when_they_are_asked_for() -> None:
    code = (
        "import os, vllm.envs as envs\n"
        "print(envs.VLLM_PORT, envs.VLLM_USE_V1, envs.VLLM_MAX_N_SEQUENCES, hasattr(envs, 'VLLM_NONSENSE'))\n"
        "os.environ['VLLM_MAX_N_SEQUENCES'] = '7'\n"
        "print(envs.VLLM_MAX_N_SEQUENCES)"
    )
    assert python(code, VLLM_PORT="8123") == "8123 True 16384 False\n7"


def test_functions_beside_the_engine_do_what_they_say() -> None:
    code = (
        "from vllm.distributed import cleanup_dist_env_and_memory, get_tensor_model_parallel_world_size\n"
        "from vllm.logger import init_logger\n"
        "from vllm.lora.request import LoRARequest\n"
        "from vllm.usage.usage_lib import UsageContext\n"
        "from vllm.utils import FlexibleArgumentParser, get_open_port, random_uuid\n"
        "parser = FlexibleArgumentParser()\n"
        "parser.add_argument('--max-model-len', type=int)\n"
        "assert parser.parse_args(['--max_model_len', '8']).max_model_len == 8\n"
        "assert parser.parse_args(['--max_model_len=9']).max_model_len == 9\n"
        "from vllm import EngineArgs\n"
        "import sys\n"
        "sys.argv = ['program', '--max_model_len', '1k', '-tp', '1', '-O.mode=3', '--system-prompt', 'a']\n"
        "parser = FlexibleArgumentParser()\n"
        "parser.add_argument('--system-prompt')\n"
        "args = EngineArgs.add_cli_args(parser).parse_args()\n"
        "assert (args.max_model_len, args.compilation_config) == (1000, {'mode': 3})\n"
        "assert args.system_prompt == 'a'\n"
        "assert EngineArgs.from_cli_args(args).tensor_parallel_size == 1\n"
        "for _ in range(2): init_logger('here').warning_once('%s is said once', 'it')\n"
        "assert LoRARequest('a', 1, '/a').lora_path == '/a'\n"
        "assert UsageContext.LLM_CLASS == 'LLM_CLASS'\n"
        "assert (get_tensor_model_parallel_world_size(), cleanup_dist_env_and_memory()) == (1, None)\n"
        "assert 0 < get_open_port() < 65536 and len(random_uuid()) == 16\n"
        "from vllm.utils.print_utils import print_embeddings\n"
        "print_embeddings([0.5, 1.0, 1.5, 2.0, 2.5])\n"
        "print_embeddings([0.5], prefix='Scores')\n"
    )
    done = as_vllm("python", "-c", code)
    assert (done.returncode, done.stderr.strip()) == (0, "it is said once")
    assert done.stdout == "Embeddings: [0.5, 1.0, 1.5, 2.0, ...] (size=5)\nScores: [0.5] (size=1)\n"


def test_all_names_of_the_table_are_there_and_tokenizers_and_chat_templates_are_those_of_the_model() -> None:
    """In one process, for both load torch."""
    code = (
        "from importlib import import_module\n"
        "from vllm import *\n"
        "from baton.vllm_alias.modules import MODULES\n"
        "for module in MODULES:\n"
        "    found = import_module(module)\n"
        "    assert found.__name__ == module, found\n"
        "    for name in found.__all__:\n"
        "        getattr(found, name)\n"
        "print(LLM.__module__)\n"
        "import baton, pathlib\n"
        "from vllm.renderers.hf import resolve_chat_template\n"
        "from vllm.tokenizers import get_tokenizer\n"
        "folder = pathlib.Path(baton.__file__).parent / 'bundled'\n"
        "tokenizer = get_tokenizer(folder, tokenizer_mode='auto', trust_remote_code=True)\n"
        "template = resolve_chat_template(tokenizer, None, None, model_config=None)\n"
        "assert template == (folder / 'chat_template.jinja').read_text()\n"
        "print(tokenizer.decode(tokenizer.encode('The os module')))"
    )
    module, text = python(code).splitlines()
    assert module.startswith("baton.")
    assert text == "The os module"


def test_the_program_vllm_is_on_the_path_of_all_children() -> None:
    done = as_vllm(
        "sh", "-c", "vllm --version; python -m vllm --version; python3 -m vllm.entrypoints.cli.main --version"
    )
    (version,) = set(done.stdout.splitlines())
    assert version.startswith("baton ")
    assert as_vllm("sh", "-c", "vllm collect-env | head -1; python -m vllm.collect_env | head -1").stdout == (
        "system\nsystem\n"
    )
    for command in (("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server")):
        assert "usage: baton serve" in as_vllm(*command, "--help").stdout


def test_commands_that_only_vllm_has_are_refused() -> None:
    done = as_vllm("vllm", "launch", "render", "m")
    assert done.returncode == 2
    assert done.stderr.startswith("baton: baton has no command launch: ")


def test_a_module_that_is_no_program_is_not_run() -> None:
    done = as_vllm("python", "-m", "vllm.entrypoints.api_server", "--model", "m")
    assert done.returncode == 1
    assert "vllm.entrypoints.api_server.__main__ is not in Baton: vLLM's own releases" in done.stderr
    assert "run vllm serve MODEL and POST to /v1/completions" in done.stderr


def test_the_command_gets_three_variables_and_no_more() -> None:
    shown = as_vllm("python", "-c", "import json, os; print(json.dumps(dict(os.environ)))").stdout
    changed = {name for name, value in json.loads(shown).items() if os.environ.get(name) != value}
    assert changed == {"BATON_PYTHON", "PATH", "PYTHONPATH"}


def test_variables_that_were_set_stay_behind_those_of_the_alias(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("where = 'mine'")
    (tmp_path / "vllm.py").write_text("raise ImportError('the other one')")
    assert (
        python("import mine, vllm; print(mine.where, vllm.SamplingParams.__name__)", PYTHONPATH=str(tmp_path))
        == "mine SamplingParams"
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "COMMAND is left out"),
        (("/no/such/program",), "COMMAND is '/no/such/program', which cannot be run"),
    ],
    ids=["none", "no program"],
)
def test_a_command_that_cannot_be_run_is_refused(command: tuple[str, ...], said: str) -> None:
    done = as_vllm(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"baton as-vllm: {said}")
    assert "allowed: a program on PATH" in done.stderr
