"""The timer's cost model, and how it is fitted to measured steps."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.worker.step_plan import SeqId, SequenceSlice
from baton_simulator.capacity.step_timing import StepTiming, TimingProfile, work, write_profile
from bench.calibrate import Piece, fit, make_plan, shapes
from bench.replay.worker_sizing import named_profile

TIMING = StepTiming(
    step_s=1.0, prompt_token_s=0.1, prompt_pair_s=0.01, decode_s=0.001, decode_context_s=0.0001
)
PROFILE = TimingProfile(
    model="m", machine="a", is_measured=False, source="s", kv_bytes_per_token=8, timing=TIMING
)


def make_slice(start: int, num_tokens: int) -> SequenceSlice:
    return SequenceSlice(seq_id=SeqId("r", 0), token_ids=(1,) * num_tokens, start=start, block_tables=((0,),))


def test_a_step_counts_prompt_tokens_with_what_they_see_and_decodes_with_theirs() -> None:
    slices = [make_slice(10, 3), make_slice(7, 1), make_slice(0, 1)]
    assert work(slices) == (1, 3, 11 + 12 + 13, 2, 8 + 1)
    assert TIMING.seconds(slices) == pytest.approx(1 + 0.3 + 0.36 + 0.002 + 0.0009)


def test_a_request_takes_its_chunks_and_its_share_of_steps() -> None:
    prefill_s = 2 * 1.0 + 100 * 0.1 + (100 * 50 + 100 * 101 / 2) * 0.01
    decode_s = 8 * (1.0 / 4 + 0.001 + (150 + 4) * 0.0001)
    assert TIMING.request_seconds(150, 50, 8, chunk=64) == pytest.approx(prefill_s + decode_s)


def test_a_fit_finds_the_constants_that_made_the_times() -> None:
    amounts = [work([make_slice(p.start, p.num_tokens) for p in step]) for step in shapes()]
    found, error = fit(amounts, [sum(map(float.__mul__, TIMING.costs(), map(float, a))) for a in amounts])
    assert found.costs() == pytest.approx(TIMING.costs(), rel=1e-6)
    assert error < 1e-9


def test_a_fit_has_no_negative_constants() -> None:
    amounts = [(1, tokens, tokens**2, 0, 0) for tokens in (10, 20, 40)]
    found, _ = fit(amounts, [1.0, 1.9, 3.5])
    assert min(found.costs()) >= 0
    assert found.prompt_pair_s == 0


def test_a_profile_survives_its_file_and_says_whether_it_was_measured(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile.json", PROFILE)
    assert named_profile(str(tmp_path / "profile.json")) == PROFILE
    assert str(PROFILE) == "ASSUMED timer, not measured: m on a (s)"


@pytest.mark.parametrize(
    ("found", "written", "field"),
    [
        ('"step_s": 1.0', '"step_s": -1.0', r"\$\.timing\.step_s"),
        ('"decode_s": 0.001', '"decode_s": 1e300', r"\$\.timing\.decode_s"),
        ('"kv_bytes_per_token": 8', '"kv_bytes_per_token": 0', r"\$\.kv_bytes_per_token"),
    ],
)
def test_a_profile_of_impossible_figures_is_refused_by_the_field(
    tmp_path: Path, found: str, written: str, field: str
) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, PROFILE)
    path.write_text(path.read_text().replace(found, written))
    with pytest.raises(InvalidConfigError, match=rf"is no profile of a machine: .*{field}"):
        named_profile(str(path))


def test_the_steps_of_a_small_vocabulary_have_tokens_of_it() -> None:
    arguments = Namespace(vocab_size=50, context=64, batch=[1])
    (piece,) = make_plan([Piece(start=0, num_tokens=64)], arguments).slices
    assert set(piece.token_ids) == set(range(50))


def test_an_unknown_profile_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidConfigError, match=r"timing is 'nothing'; allowed: a file, or .*small_cpu"):
        named_profile("nothing")
