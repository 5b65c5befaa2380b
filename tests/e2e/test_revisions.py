"""The chart's processes, of two revisions with different weights, one rolled out over the other under load.

Each pod has an address of its own on the loopback, so its ports are those of the manifests.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.deploy.expressions import metric_names
from tests.e2e.calls import draw_prompt
from tests.e2e.processes import KV_CACHE_BYTES, stop, until
from tests.integration.router_cluster import MODEL
from tests.integration.weight_versions import write_version
from tests.redis_server import RedisServer, needs_redis
from tools.k8s.manifests import GOLDEN, Container, containers, read_manifests

KEY: Final = "key-of-the-chart"
NAMESPACE: Final = "--redis-namespace"
LEFT_OUT: Final = {"--slo": 1, "--served-model-name": 1, "--max-num-batched-tokens": 1}
"""Flags of the example that this machine is too slow for, with the number of their arguments."""
COMPUTING: Final = (
    *("--dtype", "float32", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--num-threads", "1"),
    *("--structured-outputs-backend", "guidance", "--max-num-seqs", "4", "--max-model-len", "512"),
)
ROUTING: Final = ("--split", "always", "--structured-outputs-backend", "guidance")
PROMPTS: Final = [draw_prompt(80, seed=seed) for seed in range(2)]
NUM_TOKENS: Final = 24
PAUSE_S: Final = 0.3
"""Between a client's requests: workers that start need a core, too."""
STARTED_WITHIN_S: Final = 240.0
CLIENT: Final = httpx.Client(verify=False)
_octets: Final = itertools.count(10)


@dataclass
class Pod:
    """A pod's process, with the probes and the hook of its container."""

    container: Container
    process: subprocess.Popen[bytes]
    address: str
    name: str
    env: Mapping[str, str]

    def probe(self, kind: str) -> int:
        """Return the status of an HTTP probe; 0 where nothing answers."""
        get = self.container.spec[kind]["httpGet"]
        try:
            return CLIENT.get(f"http://{self.address}:{get['port']}{get['path']}", timeout=5.0).status_code
        except httpx.TransportError:
            return 0

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"{self.name} has ended"
        return self.probe("readinessProbe") == 200

    def run_hook(self) -> None:
        """Run the command of preStop as in the container; a sleep is not slept in full."""
        command = self.container.spec["lifecycle"]["preStop"]["exec"]["command"]
        if command[0] == "sleep":
            time.sleep(0.5)
            return
        words = [word.replace("127.0.0.1", self.address) for word in command]
        done = subprocess.run(
            (sys.executable, "-m", *words),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "the worker is drained\n"


@dataclass
class Endpoints:
    """Routers that get requests: those whose readiness probe succeeded last, as behind a service."""

    pods: list[Pod] = field(default_factory=list)

    def follow(self, pods: list[Pod], is_over: threading.Event) -> None:
        while not is_over.wait(0.2):
            self.pods = [pod for pod in list(pods) if pod.probe("readinessProbe") == 200]


def make_model(folder: Path) -> Path:
    """Write the bundled model with other weights."""
    shutil.copytree(MODEL, folder)
    version = write_version(folder.parent / f"{folder.name}-weights")
    shutil.copy(version / "model.safetensors", folder / "model.safetensors")
    return folder


def command_of(container: Container, address: str, name: str, changes: Mapping[str, str]) -> list[str]:
    """Return the container's command with a pod's address and the test's model, Redis and revision."""
    words = container.command_with({"POD_IP": address, "POD_NAME": name})
    for flag, num_arguments in LEFT_OUT.items():
        if flag in words:
            at = words.index(flag)
            del words[at : at + 1 + num_arguments]
    for before, after in changes.items():
        words = [word.replace(before, after) for word in words]
    words = [word.replace("0.0.0.0", address) for word in words]
    return [*words, *(ROUTING if words[1] == "router" else COMPUTING)]


class Revision:
    """A router, a prefill and a decode worker of one revision, from the rendered example with Redis."""

    def __init__(self, name: str, model: Path, redis_url: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._changes = {
            "/models/qwen3-0.6b": str(model),
            "redis://redis:6379": redis_url,
            "demo-baton.": f"demo-baton.{name}.",
        }
        manifests = read_manifests((GOLDEN / "redis.yaml").read_text())
        self._containers = {one.owner.removeprefix("demo-baton-"): one for one in containers(manifests)}

    def start(self, stack: ExitStack, role: str, *further: str) -> Pod:
        address, name = f"127.0.77.{next(_octets)}", f"{role}-{self.name}"
        container = self._containers[role]
        command = [*command_of(container, address, name, self._changes), *further]
        env = {**os.environ, "BATON_API_KEY": KEY, "HF_HUB_OFFLINE": "1"}
        log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen((sys.executable, "-m", *command), env=env, stdout=log, stderr=log)
        stack.callback(lambda: process.poll() is None and stop(process))
        return Pod(container, process, address, name, env)


@contextmanager
def load(endpoints: Endpoints) -> Iterator[list[list[tuple[int, ...]]]]:
    """Ask the routers on until the block is left; gives each client's answers."""
    is_over = threading.Event()
    answers: list[list[tuple[int, ...]]] = [[] for _ in PROMPTS]

    def ask_on(number: int) -> None:
        while not is_over.is_set():
            pods = endpoints.pods
            assert pods, "no router is ready"
            body = {"prompt": PROMPTS[number], "max_tokens": NUM_TOKENS, "temperature": 0}
            body |= {"return_token_ids": True, "ignore_eos": True}
            pod = pods[len(answers[number]) % len(pods)]
            response = CLIENT.post(
                f"http://{pod.address}:8000/v1/completions",
                json=body,
                headers={"authorization": f"Bearer {KEY}"},
                timeout=60.0,
            )
            assert response.status_code == 200, f"{pod.name}: {response.text}"
            answers[number].append(tuple(response.json()["choices"][0]["token_ids"]))
            is_over.wait(PAUSE_S)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        clients = [pool.submit(ask_on, number) for number in range(len(PROMPTS))]
        try:
            yield answers
        finally:
            is_over.set()
    for client in clients:
        client.result()


def wait_until_ready(pods: list[Pod]) -> None:
    """Probe them as often as a kubelet might."""
    deadline = time.monotonic() + STARTED_WITHIN_S
    while not all(pod.is_ready() for pod in pods):
        assert time.monotonic() < deadline, f"not all of {[pod.name for pod in pods]} are ready"
        time.sleep(0.2)


def names_of_workers(router: Pod) -> set[str]:
    url = f"http://{router.address}:8000/debug/cluster"
    workers = CLIENT.get(url, headers={"authorization": f"Bearer {KEY}"}, timeout=10.0).json()["workers"]
    return {worker["worker_id"] for worker in workers}


def metrics_of(pod: Pod, port: int) -> str:
    return CLIENT.get(
        f"http://{pod.address}:{port}/metrics", headers={"authorization": f"Bearer {KEY}"}, timeout=10.0
    ).text


def unknown_metrics(exposed: str) -> set[str]:
    """Return the metrics of dashboards and alerts that these processes do not expose."""
    families = set(re.findall(r"^# TYPE (\S+) ", exposed, re.MULTILINE))
    return {one for one in metric_names() if not {one, re.sub("_(bucket|sum|count)$", "", one)} & families}


@needs_redis
@pytest.mark.timeout(800)
def test_a_revision_replaces_another_under_load_and_shares_no_request_with_it(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    asyncio.run(redis.start())
    url = redis.url.removesuffix("/0")
    blue = Revision("blue", MODEL, url, tmp_path)
    green = Revision("green", make_model(tmp_path / "green"), url, tmp_path)
    with ExitStack() as stack:
        stack.callback(redis.kill)
        old = [blue.start(stack, role) for role in ("router", "prefill", "decode")]
        wait_until_ready(old)
        routers, endpoints, is_over = [old[0]], Endpoints(), threading.Event()
        following = threading.Thread(target=endpoints.follow, args=(routers, is_over))
        following.start()
        stack.callback(following.join)
        stack.callback(is_over.set)
        until(lambda: endpoints.pods == [old[0]], 10.0, "the blue router")
        with load(endpoints) as answers:
            until(lambda: all(len(one) >= 2 for one in answers), 60.0, "blue answers")
            expected = [one[0] for one in answers]
            # A worker of green that is told of blue's router, too, is refused there.
            astray = ("--router", f"{old[0].address}:8100")
            new = [green.start(stack, "router"), green.start(stack, "prefill")]
            new.append(green.start(stack, "decode", *astray))
            wait_until_ready(new)
            assert names_of_workers(old[0]) == {"prefill-blue", "decode-blue"}
            assert names_of_workers(new[0]) == {"prefill-green", "decode-green"}
            assert 'baton_session_refusals{worker="decode-green"} 1' in metrics_of(new[2], 9100)
            routers.append(new[0])
            until(lambda: len(endpoints.pods) == 2, 10.0, "the green router")
            routers.remove(old[0])  # a pod that is being ended is no endpoint any more
            old[0].run_hook()
            stop(old[0].process)
            for worker in old[1:]:
                worker.run_hook()
                assert worker.probe("livenessProbe") == 200
                assert worker.probe("readinessProbe") == 503
                stop(worker.process)
            ended = [len(one) for one in answers]
            counts = list(zip(answers, ended, strict=True))
            until(lambda: all(len(one) > num + 1 for one, num in counts), 60.0, "green answers")
            new_metrics = metrics_of(new[0], 8000)
            all_metrics = new_metrics + metrics_of(new[1], 9100) + metrics_of(new[2], 9100)
        assert [pod.process.returncode for pod in old] == [0, 0, 0]
        for one, first in zip(answers, expected, strict=True):
            assert len(set(one)) == 2, "an answer is blue's, or green's"
            assert (one[0], one[-1] != first) == (first, True)
        assert unknown_metrics(all_metrics) == set()
        assert re.search(r'baton_placements_total\{[^}]*kind="split"[^}]*\} [1-9]', new_metrics)
