"""The watch over the ranks that follow a leader: a thread that hears them and notices when one is lost."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from baton_core.errors import BatonError
from baton_worker.ranks.follower import Follower
from baton_worker.ranks.group_transfers import GroupTransfers
from baton_worker.ranks.rank_channel import (
    OF_SETTINGS,
    AliveFrame,
    AnswerFrame,
    FailedFrame,
    TransferredFrame,
    error_of,
)

SILENT_S: Final = 1.0
"""Silence after which a rank is looked at: one whose process is stopped is lost."""
LOST_AFTER_S: Final = 10.0
"""Silence after which a rank is lost, whatever its process looks like."""
LOADS_WITHIN_S: Final = 600.0
"""Silence that is taken while weights are loaded: imports and reads may hold the interpreter."""
_WATCH_EVERY_S: Final = 0.2


class RankWatch:
    """Takes what ranks say, until their group has ended or the watch is closed.

    They may load weights at first.

    Args:
        step_within_s: seconds that a step may take.
        lost: done once the group has ended.
        end: ends the group for a reason, and with an error if that is not UNAVAILABLE.
    """

    def __init__(
        self,
        followers: Sequence[Follower],
        transfers: GroupTransfers | None,
        step_within_s: float,
        lost: Future[None],
        end: Callable[[str, BatonError | None], None],
    ) -> None:
        self._followers = followers
        self._transfers = transfers
        self._step_within_s = step_within_s
        self._lost = lost
        self._end = end
        self._silence_s = LOADS_WITHIN_S
        self._is_closing = self._is_closed = False
        self.step_began_s: float | None = None
        """When the leader began the step that it is in, by the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def on_loading(self) -> None:
        """Expect long silences from now on: weights are loaded."""
        self._silence_s = LOADS_WITHIN_S

    def on_loaded(self) -> None:
        """Expect every rank to speak soon from now on."""
        now = time.monotonic()
        for one in self._followers:
            one.seen_s = now
        self._silence_s = LOST_AFTER_S

    def expect_ends(self) -> None:
        """Take the end of a rank for no loss from now on: it is asked for."""
        self._is_closing = True

    def close(self) -> None:
        """End the thread. It may be the calling one, where garbage is collected."""
        self._is_closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def lose(self, lost: Follower, reason: str, error: BatonError | None = None) -> None:
        """End the group: a rank is lost."""
        self._end(f"rank {lost.started.rank} of the model's ranks is lost: {reason}", error)

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as left:
                for one in self._followers:
                    left.register(one.channel, selectors.EVENT_READ, one)
                self._watch(left)
        except Exception as error:
            if not self._is_closing:
                self._end(f"the watch over the model's ranks failed: {type(error).__name__}: {error}", None)

    def _watch(self, left: selectors.BaseSelector) -> None:
        while left.get_map() and not self._lost.done() and not self._is_closed:
            for key, _ in left.select(_WATCH_EVERY_S):
                one: Follower = key.data
                if not self._receive_all(one):
                    left.unregister(one.channel)
                    if not self._is_closing:
                        self.lose(one, one.started.why_ended())
            if not self._is_closing:
                self._look_for_silence()

    def _receive_all(self, one: Follower) -> bool:
        """Take the frames that have come; False where no more will come."""
        while self._receive(one):
            if not one.channel.is_ahead:
                return True
        return False

    def _receive(self, one: Follower) -> bool:
        frame = one.channel.receive_at_leader()
        one.seen_s = time.monotonic()
        match frame:
            case AliveFrame():
                return True
            case AnswerFrame():
                (one.adapter_answers if frame.is_of_adapter else one.answers).put(frame)
                return True
            case TransferredFrame(answers=answers) if self._transfers is not None:
                self._transfers.take(one.started.rank, answers)
                return True
            case FailedFrame(code=code, message=message):
                if code in OF_SETTINGS:
                    self.lose(one, message, error_of(code, message))
                else:
                    self.lose(one, f"it failed: {message}")
        return False

    def _look_for_silence(self) -> None:
        now, began_s = time.monotonic(), self.step_began_s
        if began_s is not None and now - began_s > self._step_within_s:
            self._end(f"a step of the model's ranks takes more than {self._step_within_s:g} s", None)
        for one in self._followers:
            silent_s = now - one.seen_s
            if silent_s > SILENT_S and one.started.is_stopped:
                self.lose(one, f"its process is stopped, and silent for {silent_s:.1f} s")
            elif silent_s > self._silence_s:
                self.lose(one, f"it is silent for {silent_s:.1f} s")
