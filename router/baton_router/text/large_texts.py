"""Tokenizes large texts, and spells large numbers of tokens, in bounded processes.

The tokenizers library leaves the interpreter to other threads while it works, but not while it frees what it
made: 700 MiB for a text of 3 MB. In a process of its own that delays no other request.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_router.text.model_folder import ModelFolder, read_model_folder
from baton_router.text.prompts import TokenIds
from baton_router.text.refusals import encode_answer, run_bounded
from baton_router.text.token_decoding import TokenDecoder
from baton_router.text.tokenizer_loading import load_backend
from baton_sandbox.bounded_processes import BoundedProcesses
from baton_sandbox.process_limits import ProcessLimits

LARGE: Final = 2**15
"""Characters or token ids from which on a process is worth its pipe."""
LIMITS: Final = ProcessLimits(cpu_s=30.0, wall_s=60.0, memory_bytes=4 << 30, niceness=10)
TASK_HEAD: Final = struct.Struct("??I")
"""Begins a task: if it encodes (or decodes), if special tokens are added (or left out), `most` or 0."""
_FIRST_CHARACTERS: Final = 16
"""Characters for each of `most` tokens that are tokenized first: four times as many as most texts have."""
_FAR_OVER: Final = 2
"""Times `most`: a text with more tokens in its beginning stays over `most`, however it goes on."""
ID_TYPE: Final = "I"
"""Type code of the arrays that carry token ids: 32 bits."""


class TooManyTokensError(Exception):
    """A text has far more tokens than its caller takes: `num_tokens` in its beginning alone."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(f"at least {num_tokens} tokens")
        self.num_tokens = num_tokens


class LargeTexts:
    """Tokenizes for one model. All methods are safe to call from any thread."""

    def __init__(self, model: ModelFolder) -> None:
        settings = {"model": str(model.path), "tokenizer": str(model.tokenizer_path)}
        self._processes = BoundedProcesses("baton_router.text.large_texts:prepare_tokenizer", settings)

    def encode(self, text: str, *, add_special_tokens: bool, most: int | None = None) -> TokenIds:
        """Return the ids that the tokenizer gives a text; `most` are of use to the caller, None is all.

        Raises:
            TooManyTokensError: there are far more than `most`.
            InvalidRequestError: the text has half a surrogate pair, or takes too much.
            RequestError: DEADLINE_EXCEEDED, the machine is busy; UNAVAILABLE, it shuts down; INTERNAL.
        """
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError("prompt", text, "text that UTF-8 can hold") from None
        ids = array(ID_TYPE)
        ids.frombytes(self._run(is_encoding=True, flag=add_special_tokens, content=content, most=most or 0))
        if most and len(text) > _FIRST_CHARACTERS * most and len(ids) > _FAR_OVER * most:
            raise TooManyTokensError(len(ids))
        return tuple(ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids.

        Raises:
            InvalidRequestError: it takes too much.
            RequestError: as `encode`.
        """
        content = array(ID_TYPE, token_ids).tobytes()
        return self._run(is_encoding=False, flag=skip_special_tokens, content=content).decode()

    def close(self) -> None:
        """End the processes; what they are at fails."""
        self._processes.close()

    def _run(self, *, is_encoding: bool, flag: bool, content: bytes, most: int = 0) -> bytes:
        field = "prompt" if is_encoding else "token_ids"
        refused = (field, f"{len(content)} bytes", "what is tokenized")
        task = TASK_HEAD.pack(is_encoding, flag, most) + content
        return run_bounded(self._processes, task, LIMITS, "the model's tokenizer fails", refused)


def prepare_tokenizer(model: str, tokenizer: str) -> Callable[[bytes], bytes]:
    """Return what encodes and decodes with a model's tokenizer. Called in the fork server.

    A task is a `TASK_HEAD` and a text in UTF-8, or an array of token ids; the answer is the other of the two.
    Where the beginning of a text has far more than `most` tokens, the answer is those; 0 is no limit.

    Args:
        model: the model's folder.
        tokenizer: the folder of its tokenizer.
    """
    backend = load_backend(read_model_folder(Path(model), Path(tokenizer)))
    decoder = TokenDecoder(backend)

    def work(task: bytes) -> bytes:
        is_encoding, flag, most = TASK_HEAD.unpack_from(task)
        content = task[TASK_HEAD.size :]
        if is_encoding:
            text = content.decode()
            beginning = text[: _FIRST_CHARACTERS * most or None]
            (encoded,) = backend.encode_batch_fast([beginning], add_special_tokens=flag)
            if len(beginning) < len(text) and len(encoded.ids) <= _FAR_OVER * most:
                (encoded,) = backend.encode_batch_fast([text], add_special_tokens=flag)
            return encode_answer(array(ID_TYPE, encoded.ids).tobytes())
        ids = array(ID_TYPE)
        ids.frombytes(content)
        return encode_answer(decoder.decode(ids, skip_special_tokens=flag).encode())

    return work
