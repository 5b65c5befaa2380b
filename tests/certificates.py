"""Certificates of tests, made by openssl: an authority, and whoever it vouches for at 127.0.0.1."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NEW: Final = ("openssl", "req", "-x509", *_KEY, "-days", "2")


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate and its private key."""

    certfile: str
    keyfile: str


@dataclass(frozen=True, slots=True)
class Authority:
    """Made in `folder`, which is there."""

    folder: Path
    own: Pair

    @classmethod
    def make(cls, folder: Path, name: str = "authority") -> Authority:
        own = _pair(folder, name)
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 refuses one without
        _openssl("-subj", f"/CN={name}", *usage, "-keyout", own.keyfile, "-out", own.certfile)
        return cls(folder, own)

    def issue(self, name: str, where: str = "IP:127.0.0.1") -> Pair:
        """Vouch for `name`, which listens at `where`."""
        pair = _pair(self.folder, name)
        extensions = ("-addext", f"subjectAltName={where}", "-addext", "basicConstraints=critical,CA:FALSE")
        signed = ("-CA", self.own.certfile, "-CAkey", self.own.keyfile)
        _openssl("-subj", f"/CN={name}", *extensions, *signed, "-keyout", pair.keyfile, "-out", pair.certfile)
        return pair

    def issue_expired(self, name: str) -> Pair:
        """Vouch for `name` until yesterday."""
        pair, request = _pair(self.folder, name), str(self.folder / f"{name}.csr")
        new = (
            "openssl",
            "req",
            "-new",
            *_KEY,
            "-subj",
            f"/CN={name}",
            "-keyout",
            pair.keyfile,
            "-out",
            request,
        )
        authority = ("-CA", self.own.certfile, "-CAkey", self.own.keyfile, "-CAcreateserial")
        sign = ("openssl", "x509", "-req", "-in", request, *authority, "-days", "-1", "-out", pair.certfile)
        for command in (new, sign):
            subprocess.run(command, check=True, capture_output=True, timeout=60.0)
        return pair


def _pair(folder: Path, name: str) -> Pair:
    return Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))


def _openssl(*arguments: str) -> None:
    subprocess.run((*_NEW, *arguments), check=True, capture_output=True, timeout=60.0)
