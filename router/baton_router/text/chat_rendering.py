"""Renders conversations in processes that end when a template takes more than it may.

Templates are programs: a single expression can take any time and memory, and holds the interpreter meanwhile.
Called in the tokenizing threads, which wait for a process each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Final

import msgspec

from baton_core.errors import InvalidModelError, InvalidRequestError
from baton_router.text.chat_messages import ContentFormats
from baton_router.text.chat_template import ChatTemplate, Conversation
from baton_router.text.refusals import encode_answer, encode_refusal, run_bounded
from baton_sandbox.bounded_processes import BoundedProcesses
from baton_sandbox.process_limits import ProcessLimits

LIMITS: Final = ProcessLimits(cpu_s=4.0, wall_s=20.0, memory_bytes=512 << 20, num_tasks=1000)


class ChatRendering:
    """Renders for one model. All methods are safe to call from any thread."""

    def __init__(self, special_tokens: Mapping[str, str], limits: ProcessLimits = LIMITS) -> None:
        self._special_tokens = dict(special_tokens)
        self._limits = limits
        self._processes = BoundedProcesses("baton_router.text.chat_rendering:prepare_templates", {})

    def render(self, source: str, conversation: Conversation) -> str:
        """Return the text that a template makes of a conversation.

        Raises:
            InvalidRequestError: the template is none, refuses these messages, or takes too much.
            RequestError: DEADLINE_EXCEEDED, the machine is busy; UNAVAILABLE, it shuts down; INTERNAL.
        """
        task = self._encode(source, conversation)
        refused = ("chat", "a conversation", "what the chat template renders")
        text = run_bounded(self._processes, task, self._limits, "a chat cannot be rendered", refused)
        return text.decode(errors="surrogatepass")

    def close(self) -> None:
        """End the processes; what they render fails."""
        self._processes.close()

    def _encode(self, source: str, conversation: Conversation) -> bytes:
        task = (source, self._special_tokens, conversation)
        try:
            return msgspec.json.encode(task)
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass  # half a surrogate pair, or an integer of any size, is for the standard library's
        try:
            return json.dumps((*task[:2], asdict(conversation))).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError("chat", "a conversation", f"what JSON can hold ({error})") from None


_MAX_TEMPLATES: Final = 16
"""Templates that stay compiled."""


def prepare_templates() -> Callable[[bytes], bytes]:
    """Return what renders a template over a conversation. Called in the fork server.

    A task is a JSON list of a template's source, the special tokens by name, and a conversation's fields.
    """
    compile_template = lru_cache(_MAX_TEMPLATES)(ChatTemplate)

    def work(task: bytes) -> bytes:
        source, special_tokens, fields = json.loads(task)
        if fields["content_formats"] is not None:
            fields["content_formats"] = ContentFormats(**fields["content_formats"])
        try:
            text = compile_template(source).render(Conversation(**fields), special_tokens)
        except InvalidRequestError as error:
            return encode_refusal(error)
        except InvalidModelError as error:
            allowed = f"Jinja ({error.__cause__ or error})"
            return encode_refusal(InvalidRequestError("chat_template", source, allowed))
        return encode_answer(text.encode(errors="surrogatepass"))

    return work
