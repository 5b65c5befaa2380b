"""Seconds of steps on named machines, against figures by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.worker.step_plan import SampleSpec, SeqId, SequenceSlice
from baton_simulator.capacity.hardware import HardwareChoice, StridedCost, find_hardware
from baton_simulator.capacity.machines import MACHINES
from baton_simulator.capacity.model_shape import SHAPES, ModelShape, read_shape
from baton_simulator.capacity.roofline import Efficiency, Roofline

PROFILE = Path(__file__).parents[3] / "bench" / "timings" / "small_cpu.json"
TINY = ModelShape(
    name="tiny",
    num_layers=2,
    hidden_size=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=3,
    mlp_size=5,
    vocab_size=10,
)
PEAK = Efficiency(compute=1.0, bandwidth=1.0)
DRAW = SampleSpec(seed=0, position=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def make_slice(start: int, num_tokens: int, *, draws: bool = True) -> SequenceSlice:
    return SequenceSlice(
        seq_id=SeqId("r", 0),
        token_ids=(1,) * num_tokens,
        start=start,
        block_tables=((0,),),
        samples=(DRAW,) if draws else (),
    )


def test_the_work_of_a_step_is_counted() -> None:
    work = Roofline(machine=MACHINES["h200"], model=TINY).work(
        [make_slice(7, 1), make_slice(2, 3, draws=False)]
    )
    attention, mlp, head = 4 * 3 * (2 + 1) * 2, 3 * 4 * 5, 4 * 10
    pairs = 8 + (3 + 4 + 5)
    assert work.flops == 2 * (2 * (attention + mlp) * 4 + head) + 4 * 2 * 2 * 3 * pairs
    assert work.weight_bytes == 2 * (2 * (attention + mlp) + head)
    assert work.kv_bytes == (2 * 2 * 1 * 3 * 2) * (8 + 5)
    assert work.num_tokens == 4


def test_a_lone_decode_takes_as_long_as_the_weights_take_to_read() -> None:
    model, machine = SHAPES["llama-3-8b"], MACHINES["h200"]
    step_s = Roofline(machine=machine, model=model, efficiency=PEAK).seconds([make_slice(0, 1)])
    num_read = model.num_weights - model.hidden_size * model.vocab_size
    assert step_s == pytest.approx((2 * num_read + 131_072) / 4.8e12)
    assert step_s == pytest.approx(0.0031, rel=0.02)


def test_a_long_prompt_takes_as_long_as_its_arithmetic() -> None:
    model = SHAPES["llama-3-8b"]
    cost = Roofline(machine=MACHINES["h200"], model=model, efficiency=Efficiency(compute=0.5, bandwidth=1.0))
    flops = 2 * model.layer_weights(1) * 2048 + 4 * 32 * 32 * 128 * (2048 * 2049 // 2)
    assert cost.seconds([make_slice(0, 2048, draws=False)]) == pytest.approx(flops / (989e12 * 0.5))


def test_shapes_have_as_many_weights_as_their_names_say() -> None:
    sizes = {name: round(shape.num_weights / 1e9, 1) for name, shape in SHAPES.items()}
    assert sizes == {"llama-3-8b": 8.0, "llama-3-70b": 70.6, "qwen3-30b-a3b": 30.5}


def test_tensor_parallel_machines_share_the_work_and_pay_for_the_reduction() -> None:
    model, machine = SHAPES["llama-3-70b"], MACHINES["h100"]
    one, four = (
        Roofline(machine=machine, model=model, tensor_parallel=parts, efficiency=PEAK) for parts in (1, 4)
    )
    step = [make_slice(0, 1024, draws=False)]
    reduced = 2 * 80 * 1024 * 8192 * 2
    assert four.seconds(step) == pytest.approx(one.seconds(step) / 4 + 2 * 3 / 4 * reduced / 450e9)


def test_a_step_reads_the_experts_that_its_tokens_take() -> None:
    shape = SHAPES["qwen3-30b-a3b"]
    assert shape.num_touched_experts(1) == pytest.approx(8)
    assert shape.num_touched_experts(2) == pytest.approx(128 * (1 - (120 / 128) ** 2))
    assert shape.num_touched_experts(1000) == pytest.approx(128)


def test_a_decode_stands_for_several_of_which_only_the_first_has_the_prompts() -> None:
    roofline = Roofline(machine=MACHINES["h200"], model=SHAPES["llama-3-8b"])
    decode, chunk = make_slice(100, 1), make_slice(0, 512)
    cost = StridedCost(cost=roofline, overhead_s=0.5)
    first_s = roofline.seconds([decode, chunk, decode]) + 0.5
    last_s = first_s + roofline.seconds([decode, decode]) + roofline.seconds([decode]) + 2 * 0.5
    ends_s = cost.ends_s([decode, chunk, decode], [3, 1, 2])
    assert ends_s == pytest.approx([last_s, first_s, last_s - roofline.seconds([decode]) - 0.5])
    assert cost.ends_s([chunk], [1]) == pytest.approx([roofline.seconds([chunk]) + 0.5])


def test_a_cache_has_what_the_weights_leave() -> None:
    hardware = find_hardware(HardwareChoice(hardware="h200"))
    left = 141e9 * 0.9 - 2 * SHAPES["llama-3-8b"].num_weights
    assert hardware.num_kv_tokens == int(left / 131_072)
    assert hardware.link_bytes_per_s == 50e9


def test_a_profile_brings_its_own_steps() -> None:
    hardware = find_hardware(HardwareChoice(hardware=str(PROFILE), step_overhead_s=0.001))
    timing = json.loads(PROFILE.read_text())["timing"]
    seconds = timing["step_s"] + timing["decode_s"] + 100 * timing["decode_context_s"] + 0.001
    assert hardware.cost.ends_s([make_slice(99, 1)], [1]) == pytest.approx([seconds])
    assert hardware.kv_bytes_per_token == 2048


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"hardware": "h300"}, r"hardware is 'h300'; allowed: b200, h200, .*bench/calibrate\.py"),
        ({"hardware": str(Path(__file__))}, "is no profile of a machine"),
        (
            {"hardware": "h200", "model_shape": "gpt"},
            r"model_shape is 'gpt'; allowed: llama-3-8b, .*config\.json",
        ),
        ({"hardware": "h200", "tensor_parallel": 3}, "tensor_parallel_size is 3; allowed: a divisor of 32"),
        (
            {"hardware": "h100", "model_shape": "llama-3-70b"},
            "141 GB of weights of llama-3-70b; these have 72 GB",
        ),
        ({"hardware": "h100", "compute_efficiency": 1.5}, "compute_efficiency is 1.5; allowed: over 0 to 1"),
    ],
)
def test_hardware_that_cannot_be_is_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        find_hardware(HardwareChoice(**choice))  # type: ignore[arg-type]


def test_a_shape_is_read_from_a_models_configuration(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 1e6}))
    shape = read_shape(str(tmp_path))
    assert (shape.name, shape.head_dim, shape.num_experts) == (tmp_path.name, 16, 1)
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({**config, **experts}))
    shape = read_shape(str(tmp_path))
    assert (shape.mlp_size, shape.num_experts, shape.num_active_experts) == (32, 8, 2)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidConfigError, match="tells no shape"):
        read_shape(str(tmp_path))


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocab: int) -> dict[str, object]:
    """The fields that all families have; heads are of 128."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "intermediate_size": mlp,
        "vocab_size": vocab,
    }


MIXTURES = {
    "qwen1.5-moe-a2.7b": sizes(24, 2048, 16, 16, 5632, 151936)
    | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    | {"shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "glm-4.5-air": sizes(46, 4096, 96, 8, 10944, 151552)
    | {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408}
    | {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "ernie-4.5-21b-a3b": sizes(28, 2560, 20, 4, 12288, 103424)
    | {"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_capacity": [64, 64, 64]}
    | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1},
    "gpt-oss-20b": sizes(24, 2880, 64, 8, 2880, 201088)
    | {"head_dim": 64, "num_local_experts": 32, "experts_per_token": 4}
    | {"layer_types": ["sliding_attention", "full_attention"] * 12},
}


def test_the_experts_of_every_family_are_counted(tmp_path: Path) -> None:
    weights = {}
    for name, config in MIXTURES.items():
        (tmp_path / "config.json").write_text(json.dumps(config))
        shape = read_shape(str(tmp_path))
        active = shape.layer_weights(shape.num_active_experts)
        weights[name] = (round(shape.num_weights / 1e9, 1), round(active / 1e9, 1))
    assert weights == {
        "qwen1.5-moe-a2.7b": (14.3, 2.1),
        "glm-4.5-air": (106.8, 12.2),
        "ernie-4.5-21b-a3b": (22.1, 3.1),
        "gpt-oss-20b": (20.9, 3.0),
    }


def test_layers_without_experts_are_no_more_than_the_layers(tmp_path: Path) -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 5}
    (tmp_path / "config.json").write_text(json.dumps({**sizes(2, 64, 4, 2, 128, 1000), **experts}))
    shape = read_shape(str(tmp_path))
    assert shape.layer_weights(8) == 2 * (shape.attention_weights + 3 * 64 * 128)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_lora_rank", 512),
        ("model_type", "starcoder2"),
        ("layer_types", ["linear_attention"]),
        ("full_attention_interval", 4),
        ("mamba_d_state", 16),
        ("expert_layer_period", 2),
        ("num_experts_per_tok", 0),
        ("decoder_sparse_step", 2),
    ],
)
def test_a_model_of_other_layers_is_refused_by_the_field(tmp_path: Path, field: str, value: object) -> None:
    config = {**sizes(2, 64, 4, 2, 128, 1000), "num_experts": 8, "num_experts_per_tok": 2, field: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidConfigError, match=field):
        read_shape(str(tmp_path))
