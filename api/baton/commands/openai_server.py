"""A server of OpenAI's HTTP interface, as `baton chat --url` and `baton complete --url` ask it."""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from baton.commands.security_arguments import client_tls, key_of_environment
from baton.config.environment import KEY_VARIABLES
from baton_core.errors import ErrorCode, RequestError

_TIMEOUT_S: Final = 600.0
_KEY_VARIABLES: Final = ("OPENAI_API_KEY", *KEY_VARIABLES)
_DATA: Final = b"data: "


class OpenAIServer:
    """The server at a URL such as `http://localhost:8000/v1`, with the key and certificates of the flags."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._url = args.url
        parts = urlsplit(args.url)
        self._path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname or "", parts.port
        tls = client_tls(args)
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = tls.client_context() if tls.is_on else ssl.create_default_context()
        key = args.api_key or key_of_environment(*_KEY_VARIABLES)
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def first_model(self) -> str:
        """The first model that the server lists.

        Raises:
            RequestError: nobody answers, or no model is listed.
        """
        with self._answer("GET", "/models") as answer:
            models = json.loads(answer.read())["data"]
        if not models:
            raise RequestError(ErrorCode.NOT_FOUND, f"{self._url} lists no models")
        return str(models[0]["id"])

    def stream(self, route: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the chunks of a streamed answer.

        Raises:
            RequestError: nobody answers, the server refuses, or the stream has an error or breaks off.
        """
        unfinished = set(range(body.get("n", 1)))
        with self._answer("POST", route, {**body, "stream": True}) as answer:
            for line in answer:
                data = line.strip().removeprefix(_DATA)
                if not line.startswith(_DATA):
                    continue
                if data == b"[DONE]":
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    raise RequestError(ErrorCode.INTERNAL, _message(data))
                ends = (choice for choice in chunk["choices"] if choice.get("finish_reason"))
                unfinished.difference_update(choice["index"] for choice in ends)
                yield chunk
        if unfinished:
            raise RequestError(ErrorCode.UNAVAILABLE, f"the answer of {self._url} broke off")

    @contextmanager
    def _answer(
        self, method: str, route: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, self._path + route, text, self._headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise RequestError(ErrorCode.INVALID_REQUEST, _message(answer.read()))
            yield answer
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            text = f"url is {self._url!r}, where no OpenAI server answers ({error!r})"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._tls)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
