"""Makes the model that all engines load: random numbers in Qwen2's shape, 387 million, in bfloat16.

python -m bench.peer.model FOLDER
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from baton_engine.checkpoint.weight_files import read_entries
from bench.command_line import make_parser
from bench.peer.scenarios import VOCAB_SIZE

MAX_LENGTH: Final = 2048
SHAPE: Final = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_layers": 24,
    "num_heads": 14,
    "num_kv_heads": 2,
    "head_dim": 64,
}


def num_parameters(folder: Path) -> int:
    """Count the numbers in a folder's safetensors file of 16-bit numbers."""
    return num_stored_bytes(folder) // 2


def num_stored_bytes(folder: Path) -> int:
    """Return the bytes of all tensors in a folder's safetensors file."""
    return sum(entry.num_bytes for entry in read_entries(folder / "model.safetensors").values())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    import torch

    from tests.models import make_model

    make_model(
        folder,
        "qwen2",
        dtype=torch.bfloat16,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        **SHAPE,
    )


if __name__ == "__main__":
    main()
