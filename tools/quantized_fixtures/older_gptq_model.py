"""A fixture written by an older version of GPTQModel, whose model has other shapes.

Layers have biases and zero points, and groups in the order of activations; the model has a head of its own
and an odd number of words. Two cores need the environment variable GPTQMODEL_CPU_WORKERS=2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tools.quantized_fixtures.base_models import make_biased_llama
from tools.quantized_fixtures.fixture import produce
from tools.quantized_fixtures.gptq_model import make_gptq

FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "gptq-older": partial(
        make_gptq,
        scheme="4 bits, groups of 32, asymmetric, desc_act",
        make=make_biased_llama,
        group_size=32,
        sym=False,
        desc_act=True,
    )
}

if __name__ == "__main__":
    produce(FIXTURES)
