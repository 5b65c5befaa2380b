"""Conversations of responses grow until they are as large as a body."""

from __future__ import annotations

import openai
import pytest

from tests.integration.test_http_responses import responding


async def test_a_conversation_is_no_larger_than_a_body() -> None:
    async with responding("Good day.", max_body_bytes=1500) as (client, _):
        made = await client.responses.create(input="x" * 500)
        for _ in range(2):
            made = await client.responses.create(input="x" * 300, previous_response_id=made.id)
        allowed = "with [0-9]+ bytes of items so far; allowed: 1500 .--max-body-bytes.: begin another"
        with pytest.raises(
            openai.APIStatusError, match=f"previous_response_id is {made.id!r}, {allowed}"
        ) as refused:
            await client.responses.create(input="x", previous_response_id=made.id)
        assert (refused.value.status_code, refused.value.param) == (413, "previous_response_id")
