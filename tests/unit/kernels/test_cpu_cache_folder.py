"""The folder that builds of the CPU kernels are cached in: who may write there, and what is run from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton_kernels.cpu.build import BuildError, build
from baton_kernels.cpu.variants import PLAIN
from tests.unit.kernels.cpu_builds import EMPTY, make_compiler

POD_USER = 10001
"""Its group has the same number."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")


def test_a_cache_folder_that_cannot_be_made_or_trusted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="cannot be used"):
        build(PLAIN, tmp_path / "file" / "cache")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(BuildError, match=f"{shared} is writable by everybody, who may replace"):
        build(PLAIN, shared)


def test_a_cache_folder_that_others_may_replace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    (tmp_path / "link").symlink_to(parent)
    for path in (parent, tmp_path / "link"):
        with pytest.raises(BuildError, match=f"{parent} is writable by everybody, who may replace"):
            build(PLAIN, path / "baton" / "cache")
    parent.chmod(0o1777)
    assert build(PLAIN, parent / "baton" / "cache").is_file()


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        (0, POD_USER, 0o2775, ""),  # a persistent volume with fsGroup
        (0, POD_USER, 0o3777, ""),  # an emptyDir in memory with fsGroup
        (0, POD_USER, 0o2777, "is writable by everybody"),  # another emptyDir
        (POD_USER, POD_USER, 0o775, ""),  # the home of a user whose umask is 002
        (POD_USER, 100, 0o775, "is writable by group 100"),
        (0, 0, 0o775, "is writable by group 0"),
        (12345, POD_USER, 0o755, f"belongs to user 12345; allowed: {POD_USER} or root"),
    ],
)
def test_a_cache_lies_where_only_its_user_the_users_own_group_and_root_may_write(
    owner: int, group: int, mode: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: POD_USER)
    monkeypatch.setattr(os, "getegid", lambda: POD_USER)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as parent:
        compiler = make_compiler(Path(parent), EMPTY)
        monkeypatch.setenv("CXX", str(compiler))
        (cache := Path(parent, "cache")).mkdir()
        os.chown(cache, POD_USER, POD_USER)
        cache.chmod(0o2770)  # as fsGroup leaves what a pod has made before
        os.chown(parent, owner, group)
        Path(parent).chmod(mode)
        if said:
            with pytest.raises(BuildError, match=f"{parent} {said}"):
                build(PLAIN, cache)
        else:
            assert build(PLAIN, cache).is_file()


@needs_root
def test_a_user_namespace_without_root_shows_another_owner_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        fields = list(os.stat(path, follow_symlinks=follow_symlinks))
        fields[4] = fields[4] or 65534
        return os.stat_result(fields)

    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    monkeypatch.setattr(os, "geteuid", lambda: POD_USER)
    monkeypatch.setattr(Path, "stat", shown)
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, POD_USER, POD_USER)
    assert build(PLAIN, cache).is_file()


def test_folders_made_on_the_way_are_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    before = os.umask(0)
    try:
        library = build(PLAIN, tmp_path / "baton" / "cache")
    finally:
        os.umask(before)
    assert {folder.stat().st_mode & 0o777 for folder in library.parents[:2]} == {0o700}


@needs_root
def test_a_ready_made_cache_of_root_needs_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    cache = tmp_path / "cache"
    path = build(PLAIN, cache)
    (lock := path.with_suffix(".lock")).unlink()
    monkeypatch.setattr(os, "geteuid", lambda: POD_USER)
    assert build(PLAIN, cache) == path
    assert not lock.exists()


def test_nothing_is_compiled_where_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(BuildError, match=f"{tmp_path / 'cache'} is on a file system mounted noexec"):
        build(PLAIN, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def disk(*, total: int = 1000, free: int, available: int) -> Callable[[Path], SimpleNamespace]:
    """Make a `statvfs` of a file system that counts in blocks of 64 KiB."""
    space = SimpleNamespace(f_flag=0, f_frsize=65536, f_blocks=total, f_bfree=free, f_bavail=available)
    return lambda _: space


def test_no_build_begins_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    ready = build(PLAIN, tmp_path / "ready")
    monkeypatch.setattr(os, "statvfs", disk(free=1, available=1))
    with pytest.raises(
        BuildError, match=f"{tmp_path / 'cache'} has 65536 bytes free; allowed: 8388608 or more"
    ):
        build(PLAIN, tmp_path / "cache")
    assert build(PLAIN, tmp_path / "ready") == ready


def test_a_build_begins_where_a_file_system_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    monkeypatch.setattr(os, "statvfs", disk(total=0, free=0, available=0))
    assert build(PLAIN, tmp_path / "cache").exists()


@needs_root
def test_root_builds_in_what_is_reserved_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, EMPTY)))
    monkeypatch.setattr(os, "statvfs", disk(free=128, available=0))
    assert build(PLAIN, tmp_path / "cache").exists()
    monkeypatch.setattr(os, "geteuid", lambda: POD_USER)
    with pytest.raises(BuildError, match="has 0 bytes free"):
        build(PLAIN, tmp_path / "other")
