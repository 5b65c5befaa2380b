"""Embeddings of prompts: their rows, their digests in block hashes, and numbers that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.errors import InvalidRequestError
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.cache_events import cache_events
from baton_core.kv_events.events import BlockStored
from baton_core.prompt_embeds import ITEM_BYTES, PromptEmbeds, check_places, known_tokens
from baton_core.worker.sequence import Sequence
from baton_core.worker.step_plan import SeqId
from tests.builders import ONE_GROUP, make_identity, make_params
from tests.prompt_embeds import embeds_of

ROOT = root_hash(make_identity())
ROWS = torch.arange(24, dtype=torch.float32).view(8, 3)
DTYPES = [getattr(torch, name) for name in ITEM_BYTES]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_between_positions_are_those_of_the_tensor(dtype: torch.dtype) -> None:
    embeds = embeds_of(ROWS.to(dtype), start=5)
    assert (embeds.num_tokens, embeds.end) == (8, 13)
    part = embeds.between(3, 9)
    assert part == embeds_of(ROWS.to(dtype)[:4], start=2)
    assert embeds.between(0, 5) is embeds.between(13, 20) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_first_number_that_is_not_finite_is_named(dtype: torch.dtype, value: float) -> None:
    rows = torch.full((5, 3), torch.finfo(dtype).max, dtype=dtype) * torch.tensor([1, -1, 1e-3]).to(dtype)
    assert embeds_of(rows).num_tokens == 5
    many = rows.repeat(10_000, 1)
    many[40_003, 1] = many[40_004, 0] = value
    with pytest.raises(InvalidRequestError, match=r"prompt_embeds is 'NaN or infinite in row 40003'"):
        embeds_of(many)
    rows[3, 1] = rows[4, 0] = value
    with pytest.raises(InvalidRequestError, match=r"prompt_embeds is 'NaN or infinite in row 3'; allowed: "):
        embeds_of(rows)


def test_what_fits_no_rows_is_refused() -> None:
    for fields in ({"dtype": "float64"}, {"hidden_size": 0}, {"hidden_size": 4}):
        with pytest.raises(InvalidRequestError, match=r"prompt_embeds.* is .*; allowed: "):
            PromptEmbeds.of(**{"data": bytes(12), "dtype": "float32", "hidden_size": 3} | fields)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"prompt_embeds.digests is '0 bytes'"):
        replace(embeds_of(ROWS), digests=b"")
    for places in ((0, 1), (8, 0), (0, 13)):
        with pytest.raises(InvalidRequestError, match=r"prompt_embeds is '8 from position "):
            check_places([embeds_of(ROWS, start) for start in places], 20)
    check_places([embeds_of(ROWS), embeds_of(ROWS, 9)], 17)


def hashes_of(rows: torch.Tensor, start: int = 0) -> list[bytes]:
    return block_hashes(ROOT, (0,) * 12, 4, [embeds_of(rows, start)])


def test_block_hashes_cover_rows_and_their_places_and_dtype() -> None:
    plain, mine = block_hashes(ROOT, (0,) * 12, 4), hashes_of(ROWS)
    assert mine == hashes_of(ROWS.clone())
    others = [plain, hashes_of(ROWS + 1), hashes_of(ROWS, 1), hashes_of(ROWS.half()), hashes_of(ROWS[:3])]
    for other in others:
        assert not set(mine) & set(other)
    changed = ROWS.clone()
    changed[5] += 1
    assert [one == other for one, other in zip(mine, hashes_of(changed), strict=True)] == [True, False, False]


def test_events_tell_of_embeddings_by_their_digests() -> None:
    seq = Sequence(
        SeqId("r", 0),
        (0,) * 8 + (7,) * 4,
        make_params(),
        paging=ONE_GROUP,
        root=ROOT,
        arrival_s=0.0,
        publishes_contents=True,
        cache_salt="salt",
        prompt_embeds=(embeds_of(ROWS),),
    )
    contents = [content for index in range(3) if (content := seq.content(index)) is not None]
    delta = CacheDelta(number=1, stored=tuple(seq.hashes()), removed=())
    (event,) = cache_events(delta, contents, block_size=4, epoch=1)
    assert isinstance(event, BlockStored)
    assert event.extra_keys is not None
    first, second, third = event.extra_keys
    assert first is not None
    assert second is not None
    assert (first[0], len(first), len(second), third) == ("salt", 2, 1, None)
    assert bytes.fromhex(first[1]) != bytes.fromhex(second[0])
    assert seq.sample_specs()[0].history is None
    assert known_tokens((0,) * 8 + (7,) * 4, [embeds_of(ROWS)]) == (7,) * 4
