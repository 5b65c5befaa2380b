"""Callers see a request's events as they come in: three kinds of outputs, log-probabilities, ends."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton import FlatLogprobs, Logprob, PoolingOutput, RequestOutput, RequestOutputKind
from baton.api.output_builder import OutputBuilder
from baton.api.pooled_output_builder import PooledOutputBuilder
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import PooledValues
from baton_router.core.router_events import RequestTimings
from baton_router.requests.generation import Delta, Finished, GenerationEvent, PromptDelta
from baton_router.text.characters import TokenTexts
from tests.builders import make_request

CUMULATIVE, DELTA, FINAL = RequestOutputKind
TIMINGS = RequestTimings(
    queue_s=0.5, first_token_s=1.0, total_s=3.0, prefill_worker="p", decode_worker="d", transferred_bytes=9
)
FINISHED = Finished(
    request_id="r", num_prompt_tokens=3, num_output_tokens=3, num_cached_tokens=2, seed=7, timings=TIMINGS
)


def new_texts() -> TokenTexts:
    return TokenTexts(lambda token_id: f"<{token_id}>", lambda token_id: b"")


def make_builder(kind: RequestOutputKind | None = None, **params: Any) -> OutputBuilder:
    spec = make_request(prompt=3, **params)
    return OutputBuilder("text", spec, new_texts, kind=kind, arrival_s=100.0)


def position(token_id: int, logprob: float, rank: int = 1) -> PositionLogprobs:
    """The token itself and the most likely one, 9."""
    return PositionLogprobs(token_ids=(token_id, 9), logprobs=(logprob, -0.5), ranks=(rank, 1))


def delta(token_id: int, **changes: Any) -> Delta:
    fields: dict[str, Any] = {"index": 0, "text": f"t{token_id} ", "token_ids": (token_id,)}
    return Delta(**{**fields, **changes})


def show(builder: OutputBuilder, *events: GenerationEvent) -> RequestOutput | None:
    for event in events:
        builder.push(event)
    return builder.take()


def shown(builder: OutputBuilder, *events: GenerationEvent) -> RequestOutput:
    output = show(builder, *events)
    assert output is not None
    return output


def test_cumulative_outputs_show_everything_so_far() -> None:
    builder = make_builder()
    assert builder.take() is None
    outputs = [show(builder, delta(1)), show(builder, delta(2)), show(builder)]
    outputs.append(show(builder, delta(3, finish_reason="stop", stop_reason=3), FINISHED))
    assert outputs[2] is None
    shown = [output.outputs[0] for output in outputs if output]
    assert [completion.token_ids for completion in shown] == [[1], [1, 2], [1, 2, 3]]
    assert [completion.text for completion in shown] == ["t1 ", "t1 t2 ", "t1 t2 t3 "]
    assert [completion.finish_reason for completion in shown] == [None, None, "stop"]
    assert shown[-1].stop_reason == 3
    assert shown[-1].finished()
    assert [output.finished for output in outputs if output] == [False, False, True]
    assert builder.take() is None


def test_every_output_says_how_many_prompt_tokens_were_cached() -> None:
    builder = make_builder()
    outputs = [show(builder, delta(1, num_cached_tokens=2)), show(builder, delta(2))]
    outputs.append(show(builder, delta(3, finish_reason="stop"), FINISHED))
    assert [output.num_cached_tokens for output in outputs if output] == [2, 2, 2]


def test_deltas_show_each_token_once() -> None:
    builder = make_builder(output_kind=DELTA, logprobs=1, prompt_logprobs=1)
    builder.push(PromptDelta(start=1, logprobs=(position(2, -2.0), position(3, -3.0))))
    assert builder.take() is None, "the prompt comes with the first token"
    first = shown(builder, delta(4, logprobs=(position(4, -1.0),)), delta(5, logprobs=(position(5, -2.0),)))
    second = shown(builder, delta(6, logprobs=(position(6, -4.0, rank=7),), finish_reason="length"), FINISHED)
    assert (first.outputs[0].token_ids, second.outputs[0].token_ids) == ([4, 5], [6])
    assert (first.outputs[0].text, second.outputs[0].text) == ("t4 t5 ", "t6 ")
    assert (first.outputs[0].cumulative_logprob, second.outputs[0].cumulative_logprob) == (-3.0, -7.0)
    best = Logprob(-0.5, 1, "<9>")
    assert second.outputs[0].logprobs == [{6: Logprob(-4.0, 7, "<6>"), 9: best}]
    assert first.prompt_logprobs == [
        None,
        {2: Logprob(-2.0, 1, "<2>"), 9: best},
        {3: Logprob(-3.0, 1, "<3>"), 9: best},
    ]
    assert second.prompt_logprobs is None
    assert (first.finished, second.finished) == (False, True)


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
def test_an_interval_leaves_out_outputs_between_the_first_and_the_last(kind: RequestOutputKind) -> None:
    builder = make_builder(kind, stream_interval=3)
    outputs = [show(builder, delta(token_id)) for token_id in range(1, 6)]
    outputs.append(show(builder, delta(6, finish_reason="length"), FINISHED))
    ends = [output and output.outputs[0].token_ids[-1] for output in outputs]
    assert ends == [1, None, None, 4, None, 6]
    tokens = [token_id for output in outputs if output for token_id in output.outputs[0].token_ids]
    assert tokens == ([1, 2, 3, 4, 5, 6] if kind is DELTA else [1, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6])


def test_an_aborted_request_shows_what_an_interval_holds() -> None:
    builder = make_builder(DELTA, stream_interval=5)
    first = shown(builder, delta(1))
    assert show(builder, delta(2)) is None
    builder.abort()
    last = shown(builder)
    assert (first.outputs[0].token_ids, last.outputs[0].token_ids) == ([1], [2])
    assert last.outputs[0].finish_reason == "abort"


def test_final_outputs_come_once() -> None:
    builder = make_builder(output_kind=FINAL)
    assert show(builder, delta(1), delta(2)) is None
    output = shown(builder, delta(3, finish_reason="length"), FINISHED)
    assert output.outputs[0].token_ids == [1, 2, 3]


def test_a_caller_may_choose_another_kind_than_the_parameters() -> None:
    assert show(make_builder(FINAL, output_kind=DELTA), delta(1)) is None


def test_several_sequences_are_shown_side_by_side() -> None:
    whole, parts = make_builder(n=2), make_builder(DELTA, n=2)
    for builder in (whole, parts):
        builder.push(delta(1, index=1))
    assert [len(one.token_ids) for one in whole.take().outputs] == [0, 1]  # type: ignore[union-attr]
    assert [one.index for one in parts.take().outputs] == [1]  # type: ignore[union-attr]


def test_an_end_is_shown_once_with_the_request_s_own() -> None:
    builder = make_builder(DELTA)
    assert show(builder, delta(1, finish_reason="length")) is None, "the request's end is on the way"
    output = shown(builder, FINISHED)
    assert output.finished
    assert output.outputs[0].token_ids == [1]


def test_an_aborted_request_shows_what_it_has() -> None:
    builder = make_builder(FINAL, n=2)
    builder.push(delta(1, finish_reason="stop"))
    builder.abort()
    output = shown(builder)
    assert [one.finish_reason for one in output.outputs] == ["stop", "abort"]
    assert output.finished
    assert output.num_cached_tokens is None


def test_flat_logprobs_say_what_the_dictionaries_say() -> None:
    events = (
        PromptDelta(start=1, logprobs=(position(2, -2.0), position(9, -0.5))),
        delta(4, logprobs=(position(4, -1.0),)),
        delta(9, logprobs=(position(9, -0.5),), finish_reason="length"),
        FINISHED,
    )
    plain = shown(make_builder(FINAL, logprobs=1, prompt_logprobs=1), *events)
    flat = shown(make_builder(FINAL, logprobs=1, prompt_logprobs=1, flat_logprobs=True), *events)
    for one, other in (
        (plain.outputs[0].logprobs, flat.outputs[0].logprobs),
        (plain.prompt_logprobs, flat.prompt_logprobs),
    ):
        assert isinstance(other, FlatLogprobs)
        assert list(other) == [position or {} for position in one or []]
        assert list(other[1:]) == (one or [])[1:]
        assert other[-1] == (one or [])[-1]
        assert len(other) == len(one or [])
    output = flat.outputs[0].logprobs
    assert isinstance(output, FlatLogprobs)
    assert (output.start_indices, output.end_indices) == ([0, 2], [2, 3])
    assert output.token_ids == [4, 9, 9]
    assert output.logprobs == [-1.0, -0.5, -0.5]
    assert output.ranks == [1, 1, 1]
    assert output.decoded_tokens == ["<4>", "<9>", "<9>"]
    again = FlatLogprobs([0, 2], [2, 3], [4, 9, 9], [-1.0, -0.5, -0.5], [1, 1, 1], ["<4>", "<9>", "<9>"])
    assert output == again
    again.append_fast([7, 8], [-2.0, -3.0], range(1, 3), [None, None])
    assert again[2] == {7: Logprob(-2.0, 1), 8: Logprob(-3.0, 2)}
    with pytest.raises(IndexError):
        output[2]


def test_tokens_have_no_text_where_none_is_wanted() -> None:
    builder = make_builder(FINAL, logprobs=1, detokenize=False)
    output = shown(
        builder, delta(4, text="", logprobs=(position(4, -1.0),), finish_reason="length"), FINISHED
    )
    assert output.outputs[0].logprobs == [{4: Logprob(-1.0, 1, None), 9: Logprob(-0.5, 1, None)}]


def test_metrics_and_the_transfer_follow_from_the_request_s_timings() -> None:
    builder = make_builder()
    early = shown(builder, delta(1))
    late = shown(builder, delta(2), delta(3, finish_reason="length"), FINISHED)
    assert early.metrics is not None
    assert early.metrics.finished_time is None
    assert early.metrics.first_token_time is not None
    assert early.kv_transfer_params is None
    metrics = late.metrics
    assert metrics is not None
    assert (metrics.arrival_time, metrics.first_scheduled_time, metrics.time_in_queue) == (100.0, 100.5, 0.5)
    assert (metrics.first_token_time, metrics.last_token_time, metrics.finished_time) == (101.0, 103.0, 103.0)
    assert (metrics.first_token_latency, metrics.num_generation_tokens) == (1.0, 3)
    assert (metrics.queued_ts, metrics.scheduled_ts) == (100.0, 100.5)
    assert (metrics.first_token_ts, metrics.last_token_ts) == (101.0, 103.0)
    assert late.num_cached_tokens == 2
    assert late.kv_transfer_params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "p",
        "remote_request_id": "r",
        "remote_num_tokens": 3,
        "tp_size": 1,
    }


def test_a_step_of_the_wall_clock_changes_no_time_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = make_builder()
    builder.push(delta(1))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    builder.push(delta(2))
    ((gap_s, num_tokens),) = builder.token_gaps
    assert 0.0 <= gap_s < 60.0
    assert num_tokens == 1


@pytest.mark.parametrize(("prefill", "decode"), [("w", "w"), ("", "w"), ("p", "")])
def test_without_a_hand_over_there_are_no_transfer_parameters(prefill: str, decode: str) -> None:
    timings = RequestTimings(prefill_worker=prefill, decode_worker=decode)
    finished = Finished(
        request_id="r", num_prompt_tokens=3, num_output_tokens=1, num_cached_tokens=0, seed=7, timings=timings
    )
    output = shown(make_builder(FINAL), delta(1, finish_reason="length"), finished)
    assert output.kv_transfer_params is None


def test_no_token_may_be_pooled() -> None:
    builder = PooledOutputBuilder(make_request(prompt=3))
    builder.push(replace(FINISHED, pooled=PooledValues(shape=(0, 2), values=b"")))
    output = builder.take()
    assert output is not None
    assert output.outputs == PoolingOutput(torch.zeros(0, 2))
    assert output.outputs != PoolingOutput(torch.zeros(3, 2))
