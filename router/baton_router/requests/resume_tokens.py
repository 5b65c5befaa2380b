"""Resume tokens: clients keep in them what must not change for a request to give the same tokens again.

A token carries the seed, fingerprints of the request, its name and its age; nothing of prompt or reply. It
grants no access: its client sends the whole request again, with a key where keys are needed.
"""

from __future__ import annotations

import hmac
import json
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.model.model_identity import ModelIdentity
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec

VERSION: Final = 1
MAX_AGE_S: Final = 86_400
MAX_AHEAD_S: Final = 300
"""Largest lead of the clock of the router that wrote a token."""
MAX_CHARACTERS: Final = 1024
_HEAD: Final = struct.Struct(">Bqq8s8s8s8s")
_NUM_SEAL_BYTES: Final = 16
_NO_MODEL: Final = bytes(8)
"""Fingerprint of the model before any worker has joined."""
_FIELD: Final = "resume_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprints:
    """Fingerprints of a request, eight bytes each."""

    prompt: bytes
    parameters: bytes
    model: bytes
    owner: bytes
    """Fingerprint of the key and the cache salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTicket:
    """The content of a resume token."""

    request_id: str
    seed: int
    created_s: int
    """Since 1970."""
    fingerprints: Fingerprints

    @property
    def call(self) -> str:
        """Name of the call, which other weights do not change."""
        prints = self.fingerprints
        return f"{self.request_id} {self.created_s} {prints.prompt.hex()} {prints.parameters.hex()}"


class ResumeTokens:
    """Writes and reads tokens; every router with the same secret reads those of the others.

    Without a secret the seal finds damage, not forgery, and the fingerprints can be compared with guesses.
    """

    def __init__(self, secret: str = "") -> None:
        self._key = blake2b(secret.encode(), digest_size=32, person=b"baton resume").digest()

    def fingerprints(self, spec: RequestSpec, tenant: str, identity: ModelIdentity | None) -> Fingerprints:
        """Return those of a request with its seed; `identity` is the workers', None while there are none."""
        return Fingerprints(
            prompt=self._digest(b"prompt", _describe_prompt(spec)),
            parameters=self._digest(b"parameters", _describe_params(spec.params)),
            model=self.model_fingerprint(spec.adapter_digest, identity),
            owner=self._digest(b"owner", json.dumps([tenant, spec.cache_salt]).encode()),
        )

    def model_fingerprint(self, adapter_digest: str, identity: ModelIdentity | None) -> bytes:
        """Return that of a model with an adapter; of no model while there are no workers."""
        if identity is None:
            return _NO_MODEL
        return self._digest(b"model", _describe_model(identity) + adapter_digest.encode())

    def write(self, ticket: ResumeTicket) -> str:
        """Return the token: at most `MAX_CHARACTERS` of base64url."""
        prints = ticket.fingerprints
        parts = (prints.prompt, prints.parameters, prints.model, prints.owner)
        head = _HEAD.pack(VERSION, ticket.created_s, ticket.seed, *parts)
        data = head + ticket.request_id.encode()
        return _encode(data + self._seal(data))

    def read(self, token: str, now_s: float) -> ResumeTicket:
        """Return the content of a token; `now_s` is in seconds since 1970.

        Raises:
            InvalidRequestError: it is none, is damaged, was written with another secret, or is too old.
        """
        data = _decode(token) or b""
        content, seal = data[:-_NUM_SEAL_BYTES], data[-_NUM_SEAL_BYTES:]
        if not data or not hmac.compare_digest(self._seal(content), seal):
            raise InvalidRequestError(_FIELD, token, "one that a router of this fleet wrote")
        version, created_s, seed, prompt, parameters, model, owner = _HEAD.unpack_from(content)
        if version != VERSION:
            raise InvalidRequestError(_FIELD, f"of version {version}", f"of version {VERSION}")
        if not -MAX_AHEAD_S <= now_s - created_s <= MAX_AGE_S:
            age = f"{now_s - created_s:.0f} s old"
            raise InvalidRequestError(_FIELD, age, f"0 to {MAX_AGE_S} s old")
        return ResumeTicket(
            request_id=content[_HEAD.size :].decode(errors="replace"),
            seed=seed,
            created_s=created_s,
            fingerprints=Fingerprints(prompt=prompt, parameters=parameters, model=model, owner=owner),
        )

    def _digest(self, person: bytes, data: bytes) -> bytes:
        return blake2b(data, digest_size=8, key=self._key, person=person).digest()

    def _seal(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:_NUM_SEAL_BYTES]


def require_same(ticket: ResumeTicket, given: Fingerprints) -> None:
    """Refuse a request that would not give the tokens of the one that the ticket was written for.

    Raises:
        InvalidRequestError: saying in what they differ.
    """
    for one in fields(Fingerprints):
        expected, found = getattr(ticket.fingerprints, one.name), getattr(given, one.name)
        if expected != found and not (one.name == "model" and _NO_MODEL in (expected, found)):
            what = {"parameters": "other sampling parameters", "owner": "another key or cache_salt"}
            value = f"of a request with {what.get(one.name, f'another {one.name}')}"
            raise InvalidRequestError(_FIELD, value, "the token of this very request")


def _decode(token: str) -> bytes | None:
    """The bytes of a token that is written and long enough as one is, else None."""
    if not (token.isascii() and len(token) <= MAX_CHARACTERS):
        return None
    try:
        data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return None
    is_whole = len(data) >= _HEAD.size + _NUM_SEAL_BYTES
    return data if is_whole and _encode(data) == token else None


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _describe_prompt(spec: RequestSpec) -> bytes:
    embeds = b"".join(one.start.to_bytes(4, "little") + one.digests for one in spec.prompt_embeds)
    return msgspec.msgpack.encode(spec.prompt_token_ids) + embeds


def _describe_params(params: SamplingParams) -> bytes:
    values = {one.name: getattr(params, one.name) for one in fields(params)}
    return json.dumps(values, sort_keys=True, default=asdict).encode()


def _describe_model(identity: ModelIdentity) -> bytes:
    """Describe what workers of one fleet agree on; how they move blocks changes no token."""
    values = {one.name: getattr(identity, one.name) for one in fields(identity) if one.name != "transport"}
    return json.dumps(values, sort_keys=True, default=str).encode()
