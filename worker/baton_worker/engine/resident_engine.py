"""One model in this process, and what of it is in memory: it may sleep."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

import torch
from torch import Tensor

from baton_core.errors import BatonError, ErrorCode, InvalidModelError, InvalidRequestError, RequestError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.model.model_description import require_equal
from baton_core.ranks.rank_layout import RankPlace
from baton_core.requests.adapter import Adapter
from baton_core.sessions.control_messages import AWAY_AT, ENGINE_MEMORY, EnginePart
from baton_core.worker.step_plan import StepPlan, StepResult
from baton_engine.adapters.adapter_bank import AdapterBank
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import free_unused
from baton_engine.drafting.draft_guard import DraftGuard
from baton_engine.drafting.draft_loading import plan_drafts, tap_beside
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import LoadedEngine, LoadedModel, ReadModel, load_model
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.sampling.sampling_state import Grammars
from baton_engine.shared_weights import share_weights
from baton_engine.sizing import GIB, NOTHING_BESIDE, KVCachePlan
from baton_engine.steps.step_pipeline import Launched
from baton_engine.tensor_moves import move_tensors
from baton_engine.weight_check import check_weights
from baton_kv.pool_memory import Lend
from baton_worker.pool_placement import PoolPlacement
from baton_worker.ranks.executor_choice import rank_starter
from baton_worker.ranks.executor_settings import LOCAL, ExecutorSettings
from baton_worker.ranks.group_transfers import GroupTransfers
from baton_worker.ranks.rank_group import RankGroup

AllocateSharedPool = Callable[[KVSpec, int, Lend | None], Tensor]
"""Returns a zeroed, contiguous pool of a number of blocks, whose memory is lent when it is new."""
RELOAD_WEIGHTS: Final = "reload_weights"
"""The method of vLLM's workers that scripts call between the two wakings from level 2."""
_log = logging.getLogger(__name__)


class ResidentEngine:
    """A loaded engine whose KV pool and weights can be given up and taken back.

    The size of the pool stays what it was at the start, so what a worker promised stays true.

    Args:
        allocate_pool: gives the pool's memory at the start and whenever it is taken back, and lends what is
            new to other ranks; None: this process's own.
        give_back_pool: called when no engine uses what `allocate_pool` gave.
        ranks: this process's place in a group that another one leads; None: it leads its own, if the settings
            ask for several ranks, or is alone.
        executor: how the ranks of its own group are started.
        transfers: moves blocks where each of them has a pool.

    Raises:
        InvalidModelError: the model cannot be loaded.
        InvalidConfigError: a setting cannot hold.
        RequestError: UNAVAILABLE, another rank is lost.
    """

    def __init__(
        self,
        settings: EngineSettings,
        grammars: Grammars | None,
        *,
        allocate_pool: AllocateSharedPool | None = None,
        give_back_pool: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
        executor: ExecutorSettings = LOCAL,
        transfers: GroupTransfers | None = None,
    ) -> None:
        self._draft_plan = plan_drafts(settings) if ranks is None else None
        self._drafter: DraftGuard | None = None
        is_leading = ranks is None and settings.parallel.num_ranks > 1
        self.group: RankGroup | None = None
        """The other ranks, where this process leads some."""
        if is_leading:
            starter, shares_pool = rank_starter(executor, settings), executor.shares_pool
            told = settings if self._draft_plan is None else self._draft_plan.settings_of_ranks(settings)
            self.group = RankGroup(told, starter, shares_pool=shares_pool, transfers=transfers)
        self._settings = settings
        self._grammars = grammars
        if self.group is not None and allocate_pool is None:
            placement = PoolPlacement(device=self.group.device, place=self.group.own_pool_place)
            allocate_pool, give_back_pool = placement.allocate, placement.give_back
        self._allocate_pool = allocate_pool
        self._give_back_pool = give_back_pool
        self._weight_folder: Path | None = None
        """Folder of the weights after a switch; None is the model's own."""
        self._adapters: dict[str, str] = {}
        """Folders of the adapters that are loaded, by digest."""
        self._adapting = Lock()
        """Held while adapters are loaded and dropped, and while they move to another model."""
        self._away: frozenset[EnginePart] = frozenset()
        self._has_read_again = False
        """True from a waking that has read the weights' files until the next sleep, or other weights."""
        try:
            with self.group.explaining() if self.group else nullcontext():
                self._ranks = ranks or (self.group.link() if self.group else ALONE)
                self._model: LoadedModel | None = self._load()
                self._plan = self._model.kv_cache
                self._read = self._model.read
                self._device = self._model.model.device
                self._engine: LoadedEngine | None = self._start(self._model)
            if self.group is not None:
                self.group.on_loaded()
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> RankPlace:
        """Its place among the ranks of its model."""
        return self._ranks.place

    @property
    def away(self) -> frozenset[EnginePart]:
        """The parts that it lacks."""
        return self._away

    @property
    def is_sleeping(self) -> bool:
        return bool(self._away)

    @property
    def loaded(self) -> LoadedEngine:
        """The engine, ready for a step.

        Raises:
            RequestError: UNAVAILABLE, it sleeps.
        """
        if self._engine is None:
            raise self._asleep()
        return self._engine

    def launch(self, plan: StepPlan) -> Launched:
        """Begin one step; what is returned waits for it.

        Raises:
            RequestError: UNAVAILABLE, it sleeps.
        """
        runner = self.loaded.runner
        self._compute_here()
        if self.group is None:
            launched = runner.launch(plan)
        else:
            with self.group.leading():
                launched = partial(self._wait, self.group, runner.launch(plan))
        return launched if self._drafter is None else self._drafter.follow(plan, launched)

    def _wait(self, group: RankGroup, launched: Launched) -> StepResult:
        with group.leading():
            return launched()

    @property
    def is_lost(self) -> bool:
        """True once another rank is lost: `wait_lost` raises."""
        return self.group is not None and self.group.lost.done()

    async def wait_lost(self) -> None:
        """Wait until another rank is lost; for ever, if this process leads none.

        Raises:
            RequestError: UNAVAILABLE, it is lost.
        """
        await (asyncio.Event().wait() if self.group is None else asyncio.wrap_future(self.group.lost))

    def close(self) -> None:
        """End the other ranks, if this process leads some."""
        if self.group is not None:
            self.group.close()

    def sleep(self, level: int) -> None:
        """Give up what `level` says; what is cached is lost from level 1 on."""
        self._away |= AWAY_AT[level]
        if level == 0:
            return
        self._has_read_again = False
        self._give_up_pool()
        if level == 2:
            self._model = None
        elif self._model is not None and self._device.type != "cpu":
            move_tensors(self._model.model, "cpu")
        free_unused(self._device)

    def wake_up(self, tags: Iterable[str]) -> None:
        """Take back the parts that `tags` name, none meaning all.

        The pool comes with the last part: warming it up needs the weights.

        Raises:
            InvalidModelError: the model's folder cannot be read; it sleeps on.
            IncompatibleWorkerError: the folder holds another model by now; it sleeps on.
        """
        self._compute_here()
        back = self._away & (frozenset(map(EnginePart, tags)) or self._away)
        if EnginePart.WEIGHTS in back:
            self._wake_weights()
        away = self._away - back
        if self._engine is None and not away & ENGINE_MEMORY:
            assert self._model is not None, "weights come back before the pool"
            self._engine = self._start(self._model)
        self._away = away

    @property
    def weights(self) -> str:
        """Hash of its weights, in memory or not."""
        return self._read.weights

    def check_weights(self, path: str) -> str:
        """Return the hash of the weights in a folder; any thread may call it, while the engine computes.

        Raises:
            BatonError: as `check_weights` of `weight_check`.
        """
        return check_weights(Path(path), self._read, self._settings.config_overrides)

    def check_adapter(self, path: str, digest: str) -> None:
        """Find out whether an adapter fits the model; any thread may call it, while the engine computes.

        Raises:
            InvalidRequestError: as `load_adapter`.
            RequestError: UNAVAILABLE, it sleeps.
        """
        _ = self.loaded
        assert self._model is not None, "it has a runner"
        _bank(self._model).check(path, digest)

    def load_adapter(self, adapter: Adapter) -> float:
        """Load a LoRA adapter at all ranks, while the engine computes. Returns the seconds taken.

        Raises:
            InvalidRequestError: the folder cannot be read, has another content, or does not fit the model.
            RequestError: this is so at another rank, or one is lost; no rank has it.
        """
        path, digest, began_s = adapter.path, adapter.digest, time.monotonic()
        with self._adapting:
            if self._model is not None:
                _bank(self._model).load(path, digest)
            self._adapters[digest] = path
        if self.group is not None:
            try:
                self.group.change_adapter(digest, path)
            except BatonError:
                self.drop_adapter(digest)
                raise
        return time.monotonic() - began_s

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter that no step uses."""
        with self._adapting:
            self._adapters.pop(digest, None)
            if self._model is not None:
                _bank(self._model).drop(digest)
        if self.group is not None:
            with suppress(BatonError):  # a rank is lost, and the group with it
                self.group.change_adapter(digest)

    def switch_weights(self, path: str, weights: str) -> None:
        """Compute with the weights of a folder from now on; what is cached is lost.

        They are loaded beside the old ones, which stay if that fails. If the pool cannot be taken back for
        the new ones, it sleeps without it; if it slept without it before, it goes on to. Weights that it has
        already are read from this folder when it wakes up, since the one before may go.

        Raises:
            RequestError: UNAVAILABLE, it sleeps without its weights.
            InvalidModelError: the folder cannot be loaded, or does not hold those weights.
        """
        if weights == self._read.weights:
            self._weight_folder = Path(path)
            return
        if EnginePart.WEIGHTS in self._away:
            raise self._asleep()
        self._compute_here()
        model = self._load(self._plan, Path(path))
        if self._ranks.place.is_leader and model.read.weights != weights:
            text = f"path is {path!r}, which holds weights {model.read.weights}"
            raise InvalidModelError(f"{text}; allowed: {weights}, as checked")
        self._adopt(model)
        had_pool = self._engine is not None
        self._give_up_pool()
        self._away |= {EnginePart.KV_CACHE}
        self._read, self._weight_folder, self._has_read_again = model.read, Path(path), False
        free_unused(self._device)
        if had_pool:
            self._engine = self._start(model)
            self._away -= {EnginePart.KV_CACHE}

    def require_read_again(self) -> None:
        """Refuse to read the weights, unless waking from level 2 has just done so.

        Raises:
            InvalidRequestError: it has not.
        """
        if not self._has_read_again:
            allowed = "after sleep(level=2) and wake_up, which reads them; update_weights gives others"
            raise InvalidRequestError("method", RELOAD_WEIGHTS, allowed)

    def _asleep(self) -> RequestError:
        text = f"the engine sleeps without {' and '.join(sorted(self._away))}; allowed: wake_up first"
        return RequestError(ErrorCode.UNAVAILABLE, text)

    def _give_up_pool(self) -> None:
        if self._engine is not None:
            self._engine = self._drafter = None
            self._give_back_pool()

    def _compute_here(self) -> None:
        """Compute on the engine's GPU in this thread, if it has one: a thread begins with the first."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _load(self, plan: KVCachePlan | None = None, weight_folder: Path | None = None) -> LoadedModel:
        beside = self._draft_plan.memory() if self._draft_plan is not None else NOTHING_BESIDE
        model = load_model(self._settings, plan, weight_folder, self._ranks, beside)
        if self._draft_plan is not None:
            self._draft_plan.tap(model)
        elif not self._ranks.place.is_leader:
            tap_beside(model)
        if self._settings.share_weights and model.model.device.type == "cpu":
            self._share_weights(model, weight_folder)
        return model

    def _adopt(self, model: LoadedModel) -> None:
        """Take a model in the place of another, with its adapters; one that cannot be read again is lost."""
        with self._adapting:
            for digest, path in list(self._adapters.items()):
                try:
                    _bank(model).load(path, digest)
                except BatonError as error:
                    _log.warning("an adapter is not loaded again: %s", error)
                    del self._adapters[digest]
            self._model = model

    def _share_weights(self, model: LoadedModel, weight_folder: Path | None) -> None:
        settings, place = self._settings, self._ranks.place
        folder = (weight_folder or resolve_model(settings.model)).resolve()
        key = f"{folder} {model.read.weights} {model.model.dtype} {settings.cpu_kernels} {place}"
        try:
            num_bytes = share_weights((model.model, model.pooler), f"{key} {model.quantization.name}")
        except (OSError, TimeoutError) as error:
            _log.warning("weights are not shared: %s", error)
            return
        _log.info("%.3f GiB of weights are one copy for all processes that have them", num_bytes / GIB)

    def _start(self, model: LoadedModel) -> LoadedEngine:
        place = None if self._allocate_pool is None else partial(self._place_pool, self._allocate_pool)
        engine = model.start(place, self._grammars)
        if self._draft_plan is not None:
            self._drafter = DraftGuard(self._draft_plan.load(model))
        return engine

    def _place_pool(self, allocate: AllocateSharedPool, spec: KVSpec, num_blocks: int) -> Tensor:
        return allocate(spec, num_blocks, self.group.lend if self.group else None)

    def _wake_weights(self) -> None:
        if self._model is None:
            model = self._load(self._plan, self._weight_folder)
            self._require_unchanged(model.read)
            self._adopt(model)
            self._has_read_again = True
        elif self._device.type != "cpu":
            move_tensors(self._model.model, self._device)

    def _require_unchanged(self, read: ReadModel) -> None:
        """Refuse another model: workers that this one has registered with go on for each other."""
        where, hint = "what the worker started with", "; start the worker again for another model"
        require_equal("weights", read.weights, self._read.weights, where, hint)
        self._read.description.require_same(read.description, where)


def _bank(model: LoadedModel) -> AdapterBank:
    if model.adapters is None:
        raise InvalidRequestError("lora_request", "an adapter", "None: enable_lora is False")
    return model.adapters
