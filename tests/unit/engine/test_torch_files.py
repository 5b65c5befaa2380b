"""Reading weights that are published in torch's own format."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.torch_files import read_torch_entries
from baton_engine.checkpoint.weights import WeightReader
from tests.models import make_prompt
from tests.unit.engine.test_forward import native_logits


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    """A model folder without weights."""
    copied = Path(shutil.copytree(model_folder("opt"), tmp_path / "model"))
    (copied / "model.safetensors").unlink()
    return copied


@pytest.fixture
def tensors(model_folder: Callable[[str], Path]) -> dict[str, torch.Tensor]:
    return load_file(model_folder("opt") / "model.safetensors")


@pytest.mark.parametrize("prefix", ["model.decoder.", "decoder."])
def test_a_model_in_torchs_format_equals_the_one_in_safetensors(
    prefix: str, folder: Path, tensors: dict[str, torch.Tensor], model_folder: Callable[[str], Path]
) -> None:
    renamed = {name.replace("model.decoder.", prefix): tensor for name, tensor in tensors.items()}
    torch.save(renamed, folder / "pytorch_model.bin")
    prompt = make_prompt(9)
    assert torch.equal(native_logits(folder, prompt, 9), native_logits(model_folder("opt"), prompt, 9))


def test_shards_and_shared_storage_are_read(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = list(tensors)
    table = torch.arange(12, dtype=torch.float16).view(4, 3)
    shards = [
        dict.fromkeys(names[:1], tensors[names[0]]),
        {"whole": table, "part": table[1:3], "again": table},
    ]
    weight_map = {}
    for index, shard in enumerate(shards):
        file_name = f"pytorch_model-{index}.bin"
        torch.save(shard, folder / file_name)
        weight_map |= dict.fromkeys(shard, file_name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    reader = WeightReader(folder, torch.float32)
    assert torch.equal(reader.load(names[0], tensors[names[0]].shape), tensors[names[0]])
    assert reader.load("part", (2, 3)).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert torch.equal(reader.load("again", (4, 3)), table.float())


def test_safetensors_are_preferred(folder: Path, model_folder: Callable[[str], Path]) -> None:
    shutil.copy(model_folder("opt") / "model.safetensors", folder)
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    assert "model.decoder.embed_tokens.weight" in WeightReader(folder, torch.float32)


class _Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("touched"),))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": torch.ones(4, 3).T}, "tensor a does not lie row-major"),
        ([torch.ones(2)], "holds list; allowed: tensors by name"),
        ({"a": _Hostile()}, "Weights only load failed"),
    ],
)
def test_what_is_no_table_of_tensors_is_refused(
    content: object, reason: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(InvalidModelError, match=reason):
        WeightReader(folder, torch.float32)
    assert not (tmp_path / "touched").exists()


def test_the_older_format_is_refused_with_the_way_to_convert_it(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(InvalidModelError, match=r"format of torch before 1\.6.*save_pretrained"):
        WeightReader(folder, torch.float32)


def test_a_truncated_file_is_refused(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InvalidModelError, match=f"{path} cannot be read"):
        WeightReader(folder, torch.float32)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.slow
def test_random_damage_to_the_table_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "damaged.bin"
    torch.save({f"{number}.weight": torch.ones(4, 4) for number in range(4)}, path)
    stored, random = path.read_bytes(), Random(1)
    num_refused = 0
    for _ in range(300):
        damaged = bytearray(stored)
        for _ in range(3):
            damaged[random.randrange(stored.find(b"data.pkl") + 700)] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            read_torch_entries(path)
        except InvalidModelError:
            num_refused += 1
    assert num_refused > 200, "damage to the table goes unnoticed"


def pack_again(path: Path, method: int, changes: dict[str, bytes] | None = None) -> None:
    """Write a zip archive's records anew, as other programs would, some with contents from `changes`."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(name, (changes or {}).get(name.rpartition("/")[2], content))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_file_that_was_packed_again_is_refused(
    method: int, folder: Path, tensors: dict[str, torch.Tensor]
) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path)
    pack_again(path, method)
    with pytest.raises(InvalidModelError, match=r"does not lie where torch\.save puts it.*save_pretrained"):
        WeightReader(folder, torch.float32)


@pytest.mark.parametrize(
    ("written", "said"),
    [(b"big", "byte order b'big'; allowed: little"), (b"gib", r"pytorch_model\.bin cannot be read")],
)
def test_another_order_of_bytes_is_refused_also_with_a_wrong_checksum(
    folder: Path, tensors: dict[str, torch.Tensor], written: bytes, said: str
) -> None:
    """With one, reading it would end the process, and torch's reader looks at no checksums."""
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path)
    pack_again(path, zipfile.ZIP_STORED, {"byteorder": written})
    path.write_bytes(path.read_bytes().replace(b"gib", b"big", 1))
    with pytest.raises(InvalidModelError, match=said):
        WeightReader(folder, torch.float32)
