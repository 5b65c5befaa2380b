"""Examples of vLLM's own sources, unchanged, by `baton as-vllm`.

    BATON_VLLM_EXAMPLES=FOLDER make tools-check

runs those of a source distribution of vLLM 0.32. The bundled model stands for every model that they name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from baton.config.engine_args import BUNDLED_MODEL

VARIABLE: Final = "BATON_VLLM_EXAMPLES"
pytestmark = [
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names the folder of vLLM's examples"),
    pytest.mark.timeout(400),
]
MODEL_NAME: Final = re.compile(r"""["']([\w-]+/[\w.-]+)["']""")
WITHIN_S: Final = 300.0
EXAMPLES: Final = (
    "basic/offline_inference/basic.py",
    "basic/offline_inference/chat.py",
    "basic/offline_inference/generate.py",
    "deployment/async_llm_streaming.py",
    "deployment/llm_engine_example.py --model facebook/opt-125m -tp 1",
    "features/automatic_prefix_caching/prefix_caching_offline.py",
    "features/context_extension/context_extension_offline.py",
    "features/logits_processor/custom.py",
    "features/logits_processor/custom_req.py",
    "features/logits_processor/custom_req_init.py",
    "features/profiling/simple_profiling_offline.py",
    "features/structured_outputs/structured_outputs_offline.py",
    "observability/metrics/offline.py",
    "rl/batch_invariance/reproducibility_offline.py",
    "rl/pause_resume/pause_resume_offline.py",
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_unchanged(example: str, tmp_path: Path) -> None:
    file, *flags = example.split()
    source = Path(os.environ[VARIABLE]) / file
    for name in {*MODEL_NAME.findall(source.read_text(encoding="utf-8")), "facebook/opt-125m"}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(BUNDLED_MODEL)
    command = (sys.executable, "-m", "baton", "as-vllm", "python", str(source), *flags)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it prints what it generates"
