from __future__ import annotations

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.requests.validation import check_prompt


@pytest.mark.parametrize("num_tokens", [1, 127])
def test_a_prompt_that_leaves_room_for_one_token_passes(num_tokens: int) -> None:
    check_prompt([399] * num_tokens, max_model_len=128, vocab_size=400)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "prompt is '0 tokens'; allowed: 1 to 127 tokens"),
        ([0] * 128, "prompt is '128 tokens'; allowed: 1 to 127 tokens"),
        ([0, 400], "prompt is 400; allowed: token ids from 0 to 399"),
        ([0, -1], "prompt is -1; allowed: token ids from 0 to 399"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(token_ids: list[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_prompt(token_ids, max_model_len=128, vocab_size=400)
