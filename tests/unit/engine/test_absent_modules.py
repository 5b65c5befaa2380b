"""A library is imported beside placeholders for what it only names; then the packages are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from baton_engine.structured.absent_modules import import_with_placeholders

import_with_placeholders("xgrammar", "transformers")
assert not any(name.partition(".")[0] == "transformers" for name in sys.modules)

from baton_core.requests.structured_outputs import StructuredOutputsParams
from tests.unit.engine.expressions import accepts, backends

grammar = backends("xgrammar").compile(StructuredOutputsParams(regex="a+", backend="xgrammar"))
assert accepts(grammar, "aa") and not accepts(grammar, "b")
from transformers import PreTrainedTokenizerFast

assert PreTrainedTokenizerFast.__module__.startswith("transformers.")
import_with_placeholders("json", "transformers")
assert "transformers" in sys.modules
"""


@pytest.mark.slow
def test_placeholders_are_gone_after_the_import_and_a_grammar_compiles() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
