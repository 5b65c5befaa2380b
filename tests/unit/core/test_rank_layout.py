"""How ranks divide a model: every layer, head and token has its rank."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from baton_core.ranks.rank_layout import ExpertPlacement, ParallelSizes, RankPlace, stage_layers

SIZES = [ParallelSizes(tensor=t, pipeline=p) for t, p in product((1, 2, 4, 8), (1, 2, 3))]


def places(sizes: ParallelSizes) -> list[RankPlace]:
    return [RankPlace(sizes=sizes, rank=rank) for rank in range(sizes.num_ranks)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_group_has_one_leader_which_has_the_logits(sizes: ParallelSizes) -> None:
    leaders = [place for place in places(sizes) if place.is_leader]
    assert [place.rank for place in leaders] == [sizes.leader]
    assert (leaders[0].is_last_stage, leaders[0].tensor_rank) == (True, 0)
    assert {(place.stage, place.tensor_rank) for place in places(sizes)} == set(
        product(range(sizes.pipeline), range(sizes.tensor))
    )


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_stage_has_every_head_and_every_token_once(sizes: ParallelSizes) -> None:
    for stage in range(sizes.pipeline):
        ranks = [place for place in places(sizes) if place.stage == stage]
        for total, part in ((16, RankPlace.part), (1001, RankPlace.tokens), (7, RankPlace.tokens)):
            parts = [part(place, total) for place in ranks]
            assert [index for one in parts for index in one] == list(range(total))


@pytest.mark.parametrize("tensor", [2, 3, 5])
def test_each_whole_expert_has_one_rank(tensor: int) -> None:
    held = {
        experts: [list(place.experts(7)) for place in places(ParallelSizes(tensor=tensor, experts=experts))]
        for experts in ExpertPlacement
    }
    assert held[ExpertPlacement.CUT] == [list(range(7))] * tensor
    assert [one for held_by in held[ExpertPlacement.LINEAR] for one in held_by] == list(range(7))
    assert held[ExpertPlacement.ROUND_ROBIN] == [list(range(7))[rank::tensor] for rank in range(tensor)]
    for counts in ([len(one) for one in held[placement]] for placement in list(ExpertPlacement)[1:]):
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_query_heads_find_their_kv_head_at_their_rank(tensor: int, num_kv_heads: int) -> None:
    num_heads = 16
    for place in places(ParallelSizes(tensor=tensor)):
        own, kv_heads = place.part(num_heads), place.kv_heads(num_kv_heads)
        assert {head // (num_heads // num_kv_heads) for head in own} == set(kv_heads)
        assert [(head // (num_heads // num_kv_heads)) - kv_heads.start for head in own] == [
            index // (len(own) // len(kv_heads)) for index in range(len(own))
        ]


def test_stages_are_even_and_the_last_one_is_no_longer_than_others() -> None:
    for num_stages in range(1, 7):
        for num_layers in range(num_stages, 40):
            stages = stage_layers(num_layers, num_stages)
            lengths = [len(stage) for stage in stages]
            assert [stages[0].start, stages[-1].stop] == [0, num_layers]
            assert all(before.stop == after.start for before, after in pairwise(stages))
            assert max(lengths) - min(lengths) <= 1
            assert lengths[-1] == min(lengths)
    assert [len(stage) for stage in stage_layers(10, 4)] == [2, 3, 3, 2]
    sizes = ParallelSizes(pipeline=3, stages=(3, 5, 4))
    assert [place.layers(12) for place in places(sizes)] == [range(3), range(3, 8), range(8, 12)]
