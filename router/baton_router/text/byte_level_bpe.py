"""Builds the tokenizer of models without tokenizer.json: GPT-2's, from two files of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

VOCABULARY: Final = "vocab.json"
MERGES: Final = "merges.txt"
TOKENIZER_CLASSES: Final = ("GPT2Tokenizer", "GPT2TokenizerFast")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteLevelBpe:
    """A tokenizer as `vocab.json`, `merges.txt` and tokenizer_config.json describe it."""

    folder: Path
    adds_bos: bool
    adds_prefix_space: bool

    @classmethod
    def find(cls, folder: Path, tokenizer_config: Mapping[str, Any]) -> ByteLevelBpe | None:
        """Return the folder's; None where it has not both files or they are of another tokenizer."""
        has_files = (folder / VOCABULARY).is_file() and (folder / MERGES).is_file()
        if not has_files or tokenizer_config.get("tokenizer_class") not in TOKENIZER_CLASSES:
            return None
        return cls(
            folder=folder,
            adds_bos=tokenizer_config.get("add_bos_token") is True,
            adds_prefix_space=tokenizer_config.get("add_prefix_space") is True,
        )

    def build(self, bos_token: str | None) -> Tokenizer:
        """Return the tokenizer. Raises whatever the library raises for broken files."""
        tokenizer = Tokenizer(BPE.from_file(str(self.folder / VOCABULARY), str(self.folder / MERGES)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.adds_prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
        bos_id = None if bos_token is None else tokenizer.token_to_id(bos_token)
        if self.adds_bos and bos_id is not None:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[bos_token, "$A"], special_tokens=[(bos_token, bos_id)]
            )
        return tokenizer
