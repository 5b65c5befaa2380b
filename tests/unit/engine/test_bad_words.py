"""Bad words against Transformers' processor."""

from __future__ import annotations

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor

from baton_engine.sampling.bad_words import BadWords
from baton_engine.sampling.logits_rules import LogitsRules
from tests.unit.engine.steps import make_history


def test_the_last_token_is_blocked_where_the_output_ends_with_those_before() -> None:
    words = BadWords([(4,), (1, 2, 3), (2, 3), (3, 2), (1, 1, 1)])
    assert words.completions(()) == [4]
    assert words.completions((5, 1, 2)) == [4, 3, 3]
    assert words.completions((5, 3)) == [4, 2]
    assert words.completions((1,)) == [4]
    assert words.completions((1, 1)) == [4, 1]


@pytest.mark.parametrize("seed", range(12))
def test_logits_are_those_of_transformers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(0, 4, (count,), generator=generator).tolist()

    words = [tuple(draw(length)) for length in (2, 2, 2, 3, 3, 4)]
    output, logits = draw(seed), torch.randn(1, 6, generator=generator)
    processor = NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=[])
    expected = processor(torch.tensor([output], dtype=torch.int64), logits.clone())
    LogitsRules().apply(logits, {0: make_history(output, bad_words=words)})
    torch.testing.assert_close(logits, expected, atol=0, rtol=0)
