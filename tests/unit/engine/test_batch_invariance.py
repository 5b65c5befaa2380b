"""Logits of the batch-invariant mode: the same bits alone, in company, in chunks and over a cached prefix."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ExpertPlacement, ParallelSizes, RankPlace
from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.engine_settings import EngineSettings
from baton_engine.kernel_choice import invariant_kernels
from baton_engine.loading import load_model
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.models.step_attention import StepAttention
from baton_engine.ranks.agreement import numerics_of_ranks
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.sizing import KVCacheSettings
from baton_kernels.cpu.selection import load_build
from baton_kernels.interface.kernels import AttentionBatch, Kernels
from baton_kernels.selection import select_kernels
from tests.models import make_model
from tests.unit.engine.rank_threads import on_each_rank
from tests.unit.engine.steps import BLOCK_SIZE, group_tables

pytestmark = [pytest.mark.usefixtures("needs_build"), pytest.mark.slow]
ModelFolder = Callable[[str], Path]
CPU = torch.device("cpu")
NUM_BLOCKS = 64
PROMPT = [token % 97 + 5 for token in range(3, 3 * 101, 3)]


@dataclass
class Running:
    """A sequence: tokens with the blocks that hold their KV."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0
    logits: list[Tensor] = field(default_factory=list)


class Machine:
    """A tiny model with a pool that starts as NaN; steps are given as (sequence, number of tokens)."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
        *,
        online: OnlineQuantization | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        config = read_model_config(folder)
        self.kernels = kernels or invariant_kernels(config, CPU, dtype, "auto")
        quantization = read_quantization(ConfigFields.from_file(folder / "config.json"), folder)
        plan = online and OnlinePlan.of(online)
        self.weights = WeightReader(folder, dtype, quantization=quantization, online=plan)
        self.model = build_model(config, self.weights, self.kernels.layers, ranks)
        self.spec = config.kv_spec(BLOCK_SIZE, str(dtype).removeprefix("torch."))
        num_blocks = NUM_BLOCKS * len(self.spec.groups)
        pool = torch.full((num_blocks, *self.spec.block_shape), torch.nan, dtype=dtype)
        heads = ranks.place.kv_heads(self.spec.num_kv_heads)
        self.pool = pool if ranks.is_alone else pool[:, :, :, heads.start : heads.stop]
        self.free = random.Random(0).sample(range(NUM_BLOCKS), NUM_BLOCKS)

    def sequence(self, tokens: Sequence[int]) -> Running:
        return Running(list(tokens), [self.free.pop() for _ in range(-(-len(tokens) // BLOCK_SIZE))])

    @torch.inference_mode()
    def step(self, *slices: tuple[Running, int]) -> None:
        tables = [group_tables(seq.blocks, len(self.spec.groups)) for seq, _ in slices]
        batches = AttentionBatch.build_groups(
            query_lens=[count for _, count in slices],
            context_lens=[seq.num_computed + count for seq, count in slices],
            block_tables=list(zip(*tables, strict=True)),
            windows=[group.window for group in self.spec.groups],
            block_size=BLOCK_SIZE,
        )
        token_ids = [
            token
            for seq, count in slices
            for token in seq.tokens[seq.num_computed : seq.num_computed + count]
        ]
        attention = StepAttention(self.kernels.attention, self.pool, self.spec, batches)
        hidden = self.model.forward(torch.tensor(token_ids), attention)
        logits = self.model.logits(hidden)
        for (seq, count), part in zip(slices, logits.split([count for _, count in slices]), strict=True):
            seq.logits.append(part)
            seq.num_computed += count

    def logits(self, tokens: Sequence[int], chunk_len: int) -> Tensor:
        """Logits of a sequence that is alone; its blocks are free again afterwards."""
        seq = self.sequence(tokens)
        while seq.num_computed < len(tokens):
            self.step((seq, min(chunk_len, len(tokens) - seq.num_computed)))
        self.free += seq.blocks
        return torch.cat(seq.logits)


def mixed_steps(machine: Machine, seed: int) -> Tensor:
    """Logits of the prompt in chunks of random length, between two others that are computed in turn."""
    dice = random.Random(seed)
    ours = machine.sequence(PROMPT)
    others = [machine.sequence(dice.choices(range(5, 90), k=count)) for count in (45, 20)]
    while ours.num_computed < len(PROMPT):
        running = [seq for seq in (ours, *others) if seq.num_computed < len(seq.tokens)]
        dice.shuffle(running)
        machine.step(
            *((seq, min(dice.choice((1, 3, 17, 40)), len(seq.tokens) - seq.num_computed)) for seq in running)
        )
    for seq in (ours, *others):
        machine.free += seq.blocks
    return torch.cat(ours.logits)


@pytest.mark.parametrize(
    "variant", ["qwen2", "qwen3", "gemma2", "mixtral", "qwen2-moe", "gpt-oss", "gpt2", "opt"]
)
def test_logits_have_the_same_bits_however_a_sequence_is_computed(
    variant: str, model_folder: ModelFolder
) -> None:
    machine = Machine(model_folder(variant))
    alone = machine.logits(PROMPT, len(PROMPT))
    assert alone.isfinite().all()
    for chunk_len in (1, 7, 32):
        assert torch.equal(machine.logits(PROMPT, chunk_len), alone)
    for seed in range(6):
        assert torch.equal(mixed_steps(machine, seed), alone)


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        *((variant, torch.float32) for variant in ("qwen2", "gemma2", "mixtral", "gpt-oss", "gpt2")),
        *((variant, torch.bfloat16) for variant in ("qwen2", "qwen2-moe")),
    ],
)
def test_logits_have_the_same_bits_for_every_number_of_ranks(
    variant: str, dtype: torch.dtype, model_folder: ModelFolder
) -> None:
    require_same_bits(model_folder(variant), dtype, (1, 2, 4))


def test_eight_ranks_have_the_bits_of_one(tmp_path: Path) -> None:
    """Each has a query head, and two KV heads are copied to four ranks each."""
    folder = make_model(tmp_path / "model", "qwen2", num_heads=8, num_kv_heads=2)
    require_same_bits(folder, torch.float32, (1, 8))


def require_same_bits(folder: Path, dtype: torch.dtype, numbers: Sequence[int]) -> None:
    """Compare logits of chunks and of mixed steps with those of other numbers of ranks."""

    def logits(ranks: Ranks) -> Tensor:
        machine = Machine(folder, dtype, ranks=ranks)
        chunked, mixed = machine.logits(PROMPT, 32), mixed_steps(machine, 0)
        if ranks.place.is_leader:
            assert torch.equal(chunked, mixed)
        return mixed

    found = []
    for tensor in numbers:
        sizes = ParallelSizes(tensor=tensor, experts=ExpertPlacement.LINEAR, is_invariant=True)
        found.append(on_each_rank(sizes, logits))
    assert found[0].isfinite().all()
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_logits_over_a_prefix_that_another_sequence_computed_have_the_same_bits(
    model_folder: ModelFolder,
) -> None:
    machine = Machine(model_folder("qwen3"))
    alone = machine.logits(PROMPT, len(PROMPT))
    first = machine.sequence(PROMPT[:40])
    machine.step((first, 17))
    machine.step((first, 23))
    second = machine.sequence(PROMPT)
    second.blocks[:5], second.num_computed = first.blocks, 40
    machine.step((second, 1))
    machine.step((second, len(PROMPT) - 41))
    assert torch.equal(torch.cat(second.logits), alone[40:])


@pytest.mark.parametrize("variant", ["qwen2", "qwen2-moe"])
def test_bfloat16_has_the_same_bits_too(variant: str, model_folder: ModelFolder) -> None:
    machine = Machine(model_folder(variant), torch.bfloat16)
    alone = machine.logits(PROMPT, len(PROMPT))
    assert torch.equal(machine.logits(PROMPT, 7), alone)
    assert torch.equal(mixed_steps(machine, 0), alone)


def test_the_mode_changes_logits_by_rounding_alone(model_folder: ModelFolder) -> None:
    folder = model_folder("gemma2")
    plain = Machine(folder, kernels=select_kernels("cpu")).logits(PROMPT, len(PROMPT))
    torch.testing.assert_close(Machine(folder).logits(PROMPT, 32), plain, rtol=1e-4, atol=1e-4)


def test_a_loaded_engine_tells_what_its_bits_depend_on(model_folder: ModelFolder) -> None:
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 22, max_model_len=64)
    settings = EngineSettings(model=str(model_folder("qwen2")), kv_cache=cache, batch_invariant=True)
    library = load_build()
    assert library is not None
    numerics = load_model(settings).start().numerics
    assert numerics.startswith(library.name)
    assert numerics.endswith(f"torch-{torch.__version__} threads-{torch.get_num_threads()}")


def test_workers_of_all_numbers_of_ranks_pair_where_bits_are_the_same(model_folder: ModelFolder) -> None:
    cache = KVCacheSettings(kv_cache_memory_bytes=1 << 22, max_model_len=64)
    parallel = ParallelSizes(is_invariant=True)
    settings = EngineSettings(
        model=str(model_folder("qwen2")), kv_cache=cache, batch_invariant=True, parallel=parallel
    )
    numerics = load_model(settings).start().numerics
    assert numerics.endswith(f"torch-{torch.__version__}, any number of ranks")
    sizes = ParallelSizes(tensor=4, is_invariant=True)
    kernels = f"avx2 torch-{torch.__version__} threads-7"
    assert numerics_of_ranks(kernels, Ranks(place=RankPlace(sizes=sizes))) == (
        f"avx2 torch-{torch.__version__}, any number of ranks"
    )
    plain = Ranks(place=RankPlace(sizes=ParallelSizes(tensor=4)))
    assert numerics_of_ranks(kernels, plain) == f"{kernels}, 4 ranks"


@pytest.mark.parametrize(
    ("variant", "settings", "said"),
    [
        ("qwen2", {"tensor": 3}, "with tensor_parallel_size 3; allowed: 1, 2, 4, 8"),
        ("mixtral", {"tensor": 2}, "with a mixture of experts; allowed with enable_expert_parallel: True"),
        ("granite", {}, "allowed with GraniteForCausalLM: False"),
    ],
)
def test_sums_that_are_not_the_same_for_all_ranks_are_refused(
    variant: str, settings: dict[str, int], said: str, model_folder: ModelFolder
) -> None:
    config = read_model_config(model_folder(variant))
    with pytest.raises(InvalidConfigError, match=f"^parallel_invariant is True.*{said}"):
        require_divisible(config, ParallelSizes(is_invariant=True, **settings))


def test_the_same_bits_for_all_ranks_need_the_mode_and_plain_layers(model_folder: ModelFolder) -> None:
    parallel, folder = ParallelSizes(is_invariant=True), str(model_folder("qwen2"))
    with pytest.raises(InvalidConfigError, match="allowed without batch_invariant: False"):
        EngineSettings(model=folder, parallel=parallel)
    settings = EngineSettings(model=folder, parallel=parallel, batch_invariant=True, quantization="int8")
    with pytest.raises(InvalidConfigError, match="allowed with quantized layers: False"):
        load_model(settings)


def test_models_without_the_mode_are_refused_by_name(model_folder: ModelFolder) -> None:
    settings = EngineSettings(model=str(model_folder("granite")), batch_invariant=True)
    reason = "GraniteForCausalLM, which runs through Transformers"
    with pytest.raises(InvalidConfigError, match=rf"^batch_invariant is True; allowed with {reason}: False$"):
        load_model(settings)


def test_a_machine_without_the_kernels_is_refused(model_folder: ModelFolder) -> None:
    settings = EngineSettings(model=str(model_folder("qwen2")), batch_invariant=True, cpu_kernels="torch")
    with pytest.raises(InvalidConfigError, match="allowed with a CPU for which no C\\+\\+ kernels are built"):
        load_model(settings)
