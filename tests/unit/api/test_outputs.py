"""Outputs as callers make, change and join them."""

from __future__ import annotations

import pytest

from baton import CompletionOutput, FlatLogprobs, Logprob, RequestOutput, RequestStateStats


def completion(text: str, token_ids: list[int], **changes: object) -> CompletionOutput:
    return CompletionOutput(0, text, token_ids, None, None, **changes)  # type: ignore[arg-type]


def output(*outputs: CompletionOutput, finished: bool = False) -> RequestOutput:
    return RequestOutput("0", "text", [1, 2], None, list(outputs), finished)


def test_positions_are_those_of_vllm() -> None:
    one = CompletionOutput(1, "a", [3], -0.5, [{3: Logprob(-0.5)}], None, "stop", 3, None)
    assert (one.index, one.text, one.token_ids, one.cumulative_logprob) == (1, "a", [3], -0.5)
    assert (one.finish_reason, one.stop_reason, one.lora_request, one.routed_experts) == (
        "stop",
        3,
        None,
        None,
    )
    stats = RequestStateStats(num_generation_tokens=1)
    whole = RequestOutput("0", "text", [1], [None], [one], True, stats, None, None, None, 4, None)
    assert (whole.request_id, whole.prompt, whole.prompt_token_ids) == ("0", "text", [1])
    assert (whole.prompt_logprobs, whole.outputs, whole.finished, whole.metrics) == (
        [None],
        [one],
        True,
        stats,
    )
    assert (whole.lora_request, whole.encoder_prompt, whole.encoder_prompt_token_ids) == (None, None, None)
    assert (whole.num_cached_tokens, whole.kv_transfer_params) == (4, None)


def test_fields_can_be_assigned() -> None:
    one = output(completion("a", [1]))
    one.outputs[0].text = "b"
    one.prompt = None
    assert (one.outputs[0].text, one.prompt) == ("b", None)


def test_arguments_of_other_versions_are_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = RequestOutput("0", None, [1], None, [], False, ec_transfer_params={"a": 1})
    assert made == RequestOutput("0", None, [1], None, [], False)
    assert "RequestOutput ignores the arguments ec_transfer_params" in caplog.text


def test_deltas_are_appended_to_their_sequences() -> None:
    first = output(completion("a", [1]))
    first.outputs[0].logprobs = [{1: Logprob(-1.0)}]
    later = completion("b", [2, 3], finish_reason="stop", stop_reason=3)
    later.logprobs, later.cumulative_logprob = [{2: Logprob(-2.0)}, {3: Logprob(-3.0)}], -6.0
    other = CompletionOutput(1, "c", [4], None, None)
    first.add(output(later, other, finished=True), aggregate=True)
    one = first.outputs[0]
    assert (one.text, one.token_ids, one.finish_reason, one.stop_reason) == ("ab", [1, 2, 3], "stop", 3)
    assert one.logprobs == [{1: Logprob(-1.0)}, {2: Logprob(-2.0)}, {3: Logprob(-3.0)}]
    assert one.cumulative_logprob == -6.0
    assert first.outputs[1] is other
    assert first.finished


def test_flat_log_probabilities_stay_flat() -> None:
    first, later = output(completion("a", [1])), output(completion("b", [2]))
    first.outputs[0].logprobs, later.outputs[0].logprobs = FlatLogprobs(), FlatLogprobs()
    first.outputs[0].logprobs.append({1: Logprob(-1.0)})
    later.outputs[0].logprobs.append({2: Logprob(-2.0)})
    first.add(later, aggregate=True)
    assert isinstance(first.outputs[0].logprobs, FlatLogprobs)
    assert list(first.outputs[0].logprobs) == [{1: Logprob(-1.0)}, {2: Logprob(-2.0)}]


def test_cumulative_outputs_take_the_place_of_earlier_ones() -> None:
    first, later = output(completion("a", [1])), output(completion("ab", [1, 2]))
    first.add(later, aggregate=False)
    assert first.outputs == [completion("ab", [1, 2])]
    assert not first.finished


def test_times_read_under_older_names_too() -> None:
    stats = RequestStateStats(3, 10.0, 10.0, 11.0, 12.0, 14.0, 2.0)
    assert (stats.first_scheduled_time, stats.first_token_time, stats.last_token_time) == (11.0, 12.0, 14.0)
    assert (stats.time_in_queue, stats.first_token_latency, stats.is_corrupted) == (1.0, 2.0, False)
    with pytest.raises(AttributeError, match="num_preemptions is counted for each worker"):
        stats.num_preemptions  # noqa: B018
    begun = RequestStateStats(arrival_time=10.0, queued_ts=10.0)
    assert (begun.first_scheduled_time, begun.first_token_time, begun.time_in_queue) == (None, None, None)
