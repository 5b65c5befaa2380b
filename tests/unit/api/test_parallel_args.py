"""The rules between the arguments of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton import LLM, EngineArgs
from baton.cli import main
from baton.config.worker_parts import worker_settings
from baton.processes.launcher import LocalCluster
from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role
from baton_worker.ranks.executor_choice import rank_starter
from baton_worker.ranks.rank_starter import LocalRanks


class OwnRanks(LocalRanks):
    """An executor that is named as a class."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"distributed_executor_backend": "gloo"},
            "distributed_executor_backend is 'gloo'; allowed: mp, ray, uni",
        ),
        (
            {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2},
            "each rank is started by Baton",
        ),
        (
            {"distributed_executor_backend": "uni", "pipeline_parallel_size": 2},
            "distributed_executor_backend is 'uni' with 2 ranks; allowed: mp, ray, or 1 rank",
        ),
        ({"node_rank": 1}, "node_rank is 1; allowed: 0 to 0, with nnodes 1"),
        (
            {"nnodes": 2, "tensor_parallel_size": 3},
            "nnodes is 2 with 3 ranks; allowed: a divisor of tensor_parallel_size * pipeline_parallel_size",
        ),
        (
            {"nnodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "ray"},
            "nnodes is 2 with distributed_executor_backend 'ray'; allowed: 1, or mp",
        ),
        (
            {"ray_placement_group": "given", "prefill_workers": 1, "decode_workers": 1},
            "ray_placement_group is 'given' with 2 workers; allowed: none",
        ),
        (
            {"ray_placement_strategy": "TIGHT"},
            "ray_placement_strategy is 'TIGHT'; allowed: PACK, STRICT_PACK",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_rank": 2},
            "data_parallel_size is 2 with ranks 2 to 2 here; allowed: ranks 0 to 1",
        ),
        (
            {"data_parallel_size": 4, "data_parallel_start_rank": 3, "data_parallel_size_local": 2},
            "data_parallel_size is 4 with ranks 3 to 4 here; allowed: ranks 0 to 3",
        ),
        (
            {"data_parallel_size": 4, "data_parallel_rank": 1, "data_parallel_size_local": 2},
            "data_parallel_size_local is 2 with data_parallel_rank 1; allowed: 1",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_external_lb": True},
            "data_parallel_external_lb is True and data_parallel_rank is not given",
        ),
        (
            {"data_parallel_size": 2, "data_parallel_hybrid_lb": True, "data_parallel_rank": 0},
            "data_parallel_hybrid_lb is True with an external balancer",
        ),
        ({"ray_placement_timeout": 0}, "ray_placement_timeout is 0; allowed: a finite number over 0"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        EngineArgs(**given)
    assert said in str(raised.value)


def test_an_executor_is_a_class_or_its_name() -> None:
    name = f"{__name__}.OwnRanks"
    for given in (OwnRanks, name, f"{__name__}:OwnRanks"):
        settings = worker_settings(EngineArgs(tensor_parallel_size=2, distributed_executor_backend=given))
        assert isinstance(rank_starter(settings.executor, settings.engine), OwnRanks)
    for wrong in ("json.JSONDecoder", "no_such_package.Ranks"):
        settings = worker_settings(EngineArgs(distributed_executor_backend=wrong))
        with pytest.raises(
            InvalidConfigError, match=f"distributed_executor_backend is '{wrong}'.*allowed: mp"
        ):
            rank_starter(settings.executor, settings.engine)


def test_the_one_rank_of_a_process_of_another_launcher_is_its_own() -> None:
    args = EngineArgs(distributed_executor_backend="external_launcher")
    assert args.distributed_executor_backend == "uni"


def test_ranks_have_pools_of_their_own_where_they_share_no_memory_or_are_asked_to() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    args = EngineArgs(tensor_parallel_size=2, nnodes=2)
    assert worker_settings(args, role=Role.MIXED).has_own_pools(cpu)
    near = worker_settings(EngineArgs(nnodes=1, tensor_parallel_size=2))
    assert not near.has_own_pools(cpu)
    assert near.has_own_pools(gpu)
    assert not worker_settings(EngineArgs()).has_own_pools(gpu)
    for size in (1, 2):
        apart = EngineArgs(tensor_parallel_size=size, rank_pools="apart")
        assert worker_settings(apart, role=Role.DECODE).has_own_pools(cpu)
    with pytest.raises(InvalidConfigError, match="node_rank is 1; allowed: 0, where requests come in"):
        worker_settings(EngineArgs(tensor_parallel_size=2, nnodes=2, node_rank=1))


def test_machines_with_the_same_key_have_the_same_secret() -> None:
    args = EngineArgs(tensor_parallel_size=2, nnodes=2)
    given = (("first", "second"), ("first",), ("second",), ())
    secrets = [worker_settings(args, api_keys=keys).executor.secret for keys in given]
    assert secrets[0] == secrets[1] != secrets[2]
    assert "first" not in secrets[0]
    assert secrets[3] == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--headless", "--headless is True with node_rank 0; allowed: node_rank over 0"),
        (
            "-tp 2 --nnodes 2 --prefill-tensor-parallel-size 1",
            "--nnodes is 2 with 1 ranks of a prefill worker; allowed: a divisor of 1",
        ),
        (
            "-tp 2 --nnodes 2 --master-port 65535",
            "--master-port is 65535, the first of 2 workers' ports; allowed: at most 65534",
        ),
        (
            "--ray-placement-group given -dp 2 --prefill-workers 0 --decode-workers 0 --mixed 1",
            "--ray-placement-group is 'given' with 2 workers; allowed: none",
        ),
        ("-tp 2 --ray-placement-group given", "--ray-placement-group is 'given' with 2 workers"),
    ],
)
def test_serve_refuses_what_a_machine_cannot_be(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *line.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "here"),
    [
        ({}, range(1)),
        ({"data_parallel_size": 3}, range(3)),
        ({"data_parallel_size": 4, "data_parallel_rank": 2}, range(2, 3)),
        ({"data_parallel_size": 4, "data_parallel_start_rank": 2}, range(2, 4)),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, range(2)),
    ],
)
def test_the_data_parallel_ranks_that_are_here(given: dict[str, Any], here: range) -> None:
    args = EngineArgs(**given)
    assert args.local_data_parallel_ranks == here
    cluster = LocalCluster(
        router_args=(),
        worker_args=(),
        num_prefill_workers=1,
        num_decode_workers=2,
        num_mixed_workers=0,
        data_parallel_ranks=args.local_data_parallel_ranks,
    )
    ranks = [cluster.data_parallel_rank(number) for number in range(len(cluster.roles))]
    assert ranks == [*here, *here, *here]


def test_one_engine_in_python_is_one_rank() -> None:
    with pytest.raises(ValueError, match="data_parallel_size is 2; allowed: 1 in Python"):
        LLM(data_parallel_size=2)


def test_python_leads_no_prefill_and_decode_workers_over_machines() -> None:
    with pytest.raises(InvalidConfigError, match=r"nnodes is 2 with prefill_workers 1 .*; allowed: 1 in Py"):
        LLM(tensor_parallel_size=2, nnodes=2, prefill_workers=1, decode_workers=1)
