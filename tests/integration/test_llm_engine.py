"""`LLMEngine`: requests come and go between steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton import LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from baton_core.errors import InvalidRequestError, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMEngine]:
    folder = make_model(tmp_path_factory.mktemp("engine") / "llama", "llama")
    engine = LLMEngine.from_engine_args(tiny_args(folder))
    yield engine
    engine.close()


def run(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_each_request_is_shown_as_its_kind_says(engine: LLMEngine) -> None:
    for kind in RequestOutputKind:
        assert engine.add_request(kind.name, PROMPT, greedy(6, output_kind=kind)) == kind.name
    assert engine.get_num_unfinished_requests() == 3
    outputs = run(engine)
    whole = outputs["FINAL_ONLY"][-1].outputs[0]
    assert [one.outputs[0].token_ids for one in outputs["FINAL_ONLY"]] == [whole.token_ids]
    assert [one.outputs[0].token_ids for one in outputs["CUMULATIVE"]] == [
        whole.token_ids[: end + 1] for end in range(6)
    ]
    assert [one.outputs[0].token_ids for one in outputs["DELTA"]] == [[token] for token in whole.token_ids]
    assert "".join(one.outputs[0].text for one in outputs["DELTA"]) == whole.text
    for shown in outputs.values():
        assert [one.finished for one in shown] == [False] * (len(shown) - 1) + [True]
    assert engine.get_num_unfinished_requests() == 0
    assert engine.step() == []


def test_requests_join_while_others_run(engine: LLMEngine) -> None:
    engine.add_request("first", PROMPT, greedy(10))
    outputs = [output for _ in range(4) for output in engine.step()]
    engine.add_request("second", PROMPT[:9], greedy(3), arrival_time=1.0)
    rest = run(engine)
    assert {output.request_id for output in outputs} == {"first"}
    metrics = rest["second"][-1].metrics
    assert metrics is not None
    assert metrics.arrival_time == 1.0
    assert len(rest["first"][-1].outputs[0].token_ids) == 10
    assert len(rest["second"][-1].outputs[0].token_ids) == 3


def test_aborted_requests_show_nothing_more(engine: LLMEngine) -> None:
    for name in ("a", "b", "c"):
        engine.add_request(name, PROMPT, greedy(100))
    for _ in range(5):
        engine.step()
    engine.abort_request("a")
    engine.abort_request(["b", "nobody"], internal=False)
    assert engine.open_requests == ("c",)
    engine.abort_request(request_ids=engine.open_requests)
    assert run(engine) == {}
    gauges = {one.name: one.value for one in engine.get_metrics() if "num_requests" in one.name}  # type: ignore[union-attr]
    assert set(gauges.values()) == {0}
    assert engine.get_metrics()[2].value == 0, "blocks are still in use"  # type: ignore[union-attr]


def test_a_trainer_counts_and_ends_the_requests_of_the_output_processor(engine: LLMEngine) -> None:
    requests = engine.output_processor
    assert not requests.has_unfinished_requests()
    for name in ("a", "b"):
        engine.add_request(name, PROMPT, greedy(50))
    engine.step()
    assert (requests.get_num_unfinished_requests(), list(requests.request_states)) == (2, ["a", "b"])
    assert requests.abort_requests(["b", "nobody"]) == ["b"]
    engine.abort_request(list(requests.request_states.keys()))
    assert not requests.has_unfinished_requests()
    assert run(engine) == {}


def test_the_name_of_an_aborted_request_is_free_at_once(engine: LLMEngine) -> None:
    for _ in range(2):
        engine.add_request("again", PROMPT, greedy(100))
        for _ in range(3):
            engine.step()
        engine.abort_request("again")
    engine.add_request("again", PROMPT, greedy(3))
    assert len(run(engine)["again"][-1].outputs[0].token_ids) == 3
    assert engine._executor.load().kv_cache_usage == 0, "blocks are still in use"


def test_a_name_is_one_request_s(engine: LLMEngine) -> None:
    engine.add_request("twice", PROMPT, greedy(2))
    with pytest.raises(InvalidRequestError, match="request_id is 'twice'; allowed: a name that no open"):
        engine.add_request("twice", PROMPT, greedy(2))
    assert list(run(engine)) == ["twice"]
    chosen = engine.add_request("", PROMPT, greedy(2))
    assert list(run(engine)) == [chosen]


def test_a_request_that_fails_takes_no_other_with_it(engine: LLMEngine) -> None:
    def broken(token_ids: list[int], logits: object) -> object:
        raise ValueError("broken on purpose")

    engine.add_request("bad", PROMPT[:5], greedy(4, logits_processors=(broken,)))
    with pytest.raises(RequestError, match=r"bad: .*broken on purpose"):
        run(engine)
    engine.add_request("good", PROMPT[:5], greedy(4))
    assert len(run(engine)["good"][-1].outputs[0].token_ids) == 4


def test_each_request_of_a_step_that_fails_is_told_of(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: object) -> None:
        raise RuntimeError("broken on purpose")

    for name in ("a", "b", "c", "dropped"):
        engine.add_request(name, PROMPT[:5], greedy(4))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._executor._steps, "_launch", fail)  # type: ignore[attr-defined]
        with pytest.raises(RequestError, match=r"a: .*broken on purpose"):
            engine.step()
    engine.abort_request("dropped")
    assert engine.open_requests == ()
    for name in ("b", "c"):
        assert engine.has_unfinished_requests()
        with pytest.raises(InvalidRequestError, match=f"request_id is '{name}'"):
            engine.add_request(name, PROMPT[:5], greedy(4))
        with pytest.raises(RequestError, match=rf"{name}: .*broken on purpose"):
            engine.step()
    assert engine.step() == []
    assert not engine.has_unfinished_requests()


def test_bad_requests_are_refused_by_name(engine: LLMEngine) -> None:
    for given, said in (
        ({"params": greedy(1, stop_token_ids=(9999,))}, "stop_token_ids is 9999"),
        ({"lora_request": "adapter"}, "lora_request is 'adapter'; allowed: None"),
        ({"trace_headers": "00"}, "trace_headers is '00'; allowed: None, or a mapping of headers' names"),
        ({"prompt_adapter_request": "a"}, "prompt_adapter_request is 'a'; allowed: None: of adapters"),
        ({"tokenization_kwargs": {"a": 1}}, "tokenization_kwargs is 'a'"),
        ({"params": "greedy"}, "sampling_params is 'greedy'; allowed: SamplingParams"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            engine.add_request("bad", PROMPT, **{"params": SamplingParams(), **given})  # type: ignore[arg-type]
    assert not engine.has_unfinished_requests()


def test_figures_are_logged_unless_it_is_told_not_to(
    engine: LLMEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "baton.api.metrics"):
        engine.do_log_stats()
        engine.args.disable_log_stats = True
        engine.do_log_stats()
        engine.args.disable_log_stats = False
    assert len(caplog.messages) == 1


def test_an_emptied_cache_sets_no_count_back(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    args = tiny_args(folder, num_gpu_blocks_override=6, speculative_config=drafts)
    engine = LLMEngine.from_engine_args(args)
    for number in range(4):
        engine.add_request(str(number), [5, 6, 7, 8, 9 + number] * 6, greedy(60))
    run(engine)

    def counts() -> dict[str, object]:
        names = ("vllm:num_preemptions", "vllm:spec_decode_num_drafts")
        return {one.name: one.value for one in engine.get_metrics() if one.name in names}  # type: ignore[union-attr]

    before = counts()
    assert all(before.values())
    assert engine.reset_prefix_cache()
    engine.sleep(1)
    engine.wake_up()
    assert counts() == before
    engine.close()


def test_many_more_requests_than_run_at_once_come_out(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama", num_layers=1)
    engine = LLMEngine.from_engine_args(tiny_args(folder, max_num_seqs=64, max_num_batched_tokens=512))
    for number in range(1100):
        engine.add_request(f"r{number}", [5 + number % 300, 9], greedy(1))
    outputs = run(engine)
    assert len(outputs) == 1100
    assert all(len(shown[-1].outputs[0].token_ids) == 1 for shown in outputs.values())


def test_an_important_request_passes_however_many_wait(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama", num_layers=1)
    args = tiny_args(folder, max_num_seqs=4, scheduling_policy="priority")
    engine = LLMEngine.from_engine_args(args)
    for number in range(520):
        engine.add_request(f"r{number}", [5 + number % 300, 9], greedy(30), priority=number % 3)
    engine.step()
    for name in ("dropped", "urgent", "urgent too"):
        engine.add_request(name, [7, 9], greedy(3), priority=-1)
    engine.abort_request("dropped")
    ended: list[str] = []
    while len(ended) < 5:
        ended += [output.request_id for output in engine.step() if output.finished]
    assert ended[:5] == ["urgent", "urgent too", "r0", "r3", "r6"]
    engine.close()
