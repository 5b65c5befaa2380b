from __future__ import annotations

from pathlib import Path

import pytest

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.model_source import resolve_model
from baton_router.text.model_folder import read_model_folder
from baton_sandbox.model_files import check_links
from tests.unit.router.folders import write_model_folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.jinja"
    path.write_text("a host's secret")
    return path


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/tool_use.jinja"]
)
def test_a_link_out_of_the_folder_is_refused_by_router_and_worker(
    tmp_path: Path, secret: Path, name: str
) -> None:
    write_model_folder(tmp_path / "model")
    link = tmp_path / "model" / name
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(secret)
    for read in (read_model_folder, lambda folder: resolve_model(str(folder))):
        with pytest.raises(InvalidModelError, match=rf"{link.name} is a link to .*secret.jinja; allowed"):
            read(tmp_path / "model")


def test_a_folder_that_is_a_link_out_is_refused(tmp_path: Path, secret: Path) -> None:
    write_model_folder(tmp_path / "model")
    (tmp_path / "model" / "additional_chat_templates").symlink_to(secret.parent)
    with pytest.raises(InvalidModelError, match="is a link to"):
        read_model_folder(tmp_path / "model")


def test_a_tokenizer_of_another_folder_is_checked_too(tmp_path: Path, secret: Path) -> None:
    for folder in ("model", "tokenizer"):
        write_model_folder(tmp_path / folder)
    (tmp_path / "tokenizer" / "special_tokens_map.json").symlink_to(secret)
    with pytest.raises(InvalidModelError, match="is a link to"):
        read_model_folder(tmp_path / "model", tmp_path / "tokenizer")


def test_links_within_the_folder_and_links_of_weights_are_followed(tmp_path: Path, secret: Path) -> None:
    folder = tmp_path / "model"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026" / "config.json").write_text("{}")
    (folder / "..data").symlink_to("..2026")  # as Kubernetes mounts a ConfigMap
    (folder / "config.json").symlink_to("..data/config.json")
    (folder / "model.safetensors").symlink_to(secret)
    check_links(folder)
    (tmp_path / "name").symlink_to(folder)
    check_links(tmp_path / "name")


def test_the_hubs_cache_links_to_the_blobs_of_its_repository_alone(tmp_path: Path, secret: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    for each in (snapshot, repository / "blobs", tmp_path / "models--c--d" / "blobs"):
        each.mkdir(parents=True)
    (repository / "blobs" / "abc").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    check_links(snapshot)
    (snapshot / "tokenizer.json").symlink_to("../../../models--c--d/blobs/abc")
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json is a link"):
        check_links(snapshot)


def test_a_link_that_leads_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("config.json")
    with pytest.raises(InvalidModelError):
        check_links(tmp_path)


def test_a_path_that_cannot_be_followed_is_left_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    check_links(tmp_path / "tokenizer.json")
    (tmp_path / "config.json").symlink_to("tokenizer.json/config.json")
    check_links(tmp_path)
