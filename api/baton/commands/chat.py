"""`baton chat`: a conversation with the model of a running router, in a terminal or from a script's input."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Protocol

import grpc

from baton.commands.openai_server import OpenAIServer
from baton.commands.security_arguments import router_access
from baton.executors.router_client import (
    connected,
    request_error,
    sampled_request,
    sampling_fields,
    wait_until_ready,
)
from baton_core.errors import ErrorCode, RequestError
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub


def chat(args: argparse.Namespace) -> int:
    """Answer line after line until `/exit` or the end of the input, or one message; 1 if an answer failed.

    Raises:
        RequestError: no router answers, or its model has no chat template.
    """
    if args.url:
        return _converse(OpenAIConversation(args), args.quick)
    access = router_access(args)
    wait_until_ready(args.address, access, args.wait)
    with connected(args.address, access) as stub:
        info = _describe(stub)
        return _converse(
            Conversation(stub, sampled_request(args), model=info.model, system=args.system), args.quick
        )


class Talk(Protocol):
    """A conversation, over any protocol."""

    @property
    def model(self) -> str: ...
    def reset(self) -> None: ...
    def ask(self, text: str) -> str: ...


def _converse(conversation: Talk, message: str | None) -> int:
    """Answer one message, or each line of the input."""
    if message is None and sys.stdin.isatty():
        _write(f"{conversation.model}: /reset forgets, /exit or Ctrl-D ends, Ctrl-C stops an answer\n")
    has_failed = False
    for line in lines() if message is None else [message]:
        if line == "/exit":
            break
        if line == "/reset":
            conversation.reset()
            _write("[the conversation starts anew]\n")
        elif line:
            try:
                _write(f"\n{conversation.ask(line)}\n")
            except RequestError as error:
                sys.stderr.write(f"\nbaton chat: {error}\n")
                has_failed = True
    return int(has_failed)


class Conversation:
    """The messages so far, and the next answer to them, at a router over gRPC."""

    def __init__(self, stub: BatonStub, request: pb.GenerateRequest, *, model: str, system: str) -> None:
        self.model = model
        self._stub = stub
        self._request = request
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Forget everything but what the system says."""
        del self._request.chat.messages[:]
        if self._system:
            self._request.chat.messages.add(role="system", content=self._system)

    def ask(self, text: str) -> str:
        """Print the answer as it arrives and return a line about its timing.

        An interrupt ends the answer; its text so far stays in the conversation. Without any text, or
        when the request fails, the question leaves the conversation again.

        Raises:
            RequestError: the request failed.
        """
        messages = self._request.chat.messages
        messages.add(role="user", content=text)
        call, answer = self._stub.Generate(self._request), Answer()
        try:
            for event in call:
                answer.take(event)
        except KeyboardInterrupt:
            call.cancel()
            answer.is_cancelled = True
        except grpc.RpcError as error:
            failure = self._explain(error)
            messages.pop()
            raise failure from None
        if answer.text:
            messages.add(role="assistant", content=answer.text)
        else:
            messages.pop()
        return answer.summary()

    def _explain(self, error: grpc.RpcError) -> RequestError:
        """Return the error, which names the conversation's length if that is the cause."""
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            request = pb.TokenizeRequest(model=self._request.model, chat=self._request.chat)
            try:
                tokens = self._stub.Tokenize(request)
            except grpc.RpcError:
                return request_error(error)
            if tokens.count >= tokens.max_model_len:
                text = f"the conversation has {tokens.count} tokens; allowed: {tokens.max_model_len - 1}"
                return RequestError(ErrorCode.INVALID_REQUEST, f"{text}. /reset starts a new one")
        return request_error(error)


class OpenAIConversation:
    """The same at a server of OpenAI's HTTP interface.

    Raises:
        RequestError: the server does not list its models, and none is named.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._server = OpenAIServer(args)
        self.model = args.model_name or self._server.first_model()
        self._system = args.system
        usage = {"stream_options": {"include_usage": True}}
        self._fields = {"model": self.model, **usage, **sampling_fields(args)}
        self.reset()

    def reset(self) -> None:
        """Forget everything but what the system says."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        self._messages: list[dict[str, str]] = system

    def ask(self, text: str) -> str:
        """As `Conversation.ask`.

        Raises:
            RequestError: the request failed.
        """
        question = {"role": "user", "content": text}
        answer = Answer()
        chunks = self._server.stream(
            "/chat/completions", {**self._fields, "messages": [*self._messages, question]}
        )
        try:
            for chunk in chunks:
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        answer.take_text(text, num_tokens=1)
                if usage := chunk.get("usage"):
                    answer.num_tokens = usage["completion_tokens"]
        except KeyboardInterrupt:
            answer.is_cancelled = True
        finally:
            chunks.close()
        if answer.text:
            self._messages += [question, {"role": "assistant", "content": answer.text}]
        return answer.summary()


class Answer:
    """One answer as it is printed, and when its tokens came."""

    def __init__(self) -> None:
        self.text = ""
        self.is_cancelled = False
        self._asked_s = self._first_s = self._last_s = time.monotonic()
        self.num_tokens = 0

    def take(self, event: pb.GenerateEvent) -> None:
        """Print an event's text."""
        if event.HasField("tokens"):
            self.take_text(event.tokens.text, num_tokens=len(event.tokens.token_ids))

    def take_text(self, text: str, *, num_tokens: int) -> None:
        """Print a text of so many tokens."""
        self._last_s = time.monotonic()
        if not self.num_tokens:
            self._first_s = self._last_s
        self.num_tokens += num_tokens
        self.text += text
        _write(text)

    def summary(self) -> str:
        """One line: the time to the first token, and to the last one.

        The rate is that of the whole answer: the first piece that is read may hold most of it.
        """
        parts = ["cancelled"] if self.is_cancelled else []
        if not self.num_tokens:
            return f"[{', '.join([*parts, '0 tokens'])}]"
        parts.append(f"TTFT {1e3 * (self._first_s - self._asked_s):.1f} ms")
        took_s = max(self._last_s - self._asked_s, 1e-9)
        rate = f"{self.num_tokens / took_s:.1f} tokens/s"
        return f"[{', '.join(parts)}, {self.num_tokens} tokens in {1e3 * took_s:.1f} ms: {rate}]"


def _describe(stub: BatonStub) -> pb.ModelInfo:
    try:
        info: pb.ModelInfo = stub.GetModelInfo(pb.GetModelInfoRequest())
    except grpc.RpcError as error:
        raise request_error(error) from None
    if not info.has_chat_template:
        text = (
            f"model is {info.model!r}, which has no chat template; allowed: one that has, or baton complete"
        )
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    return info


def lines() -> Iterator[str]:
    """Yield the user's lines. Those of a script are echoed, as a terminal would show them."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        for line in sys.stdin:
            _write(f"> {line.strip()}\n")
            yield line.strip()
        return
    # Gives `input` its line editing; some Pythons lack it, and loading it changes the terminal.
    with suppress(ImportError):
        import_module("readline")
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
