"""Names of logits processors: of class objects, and of those that installed packages declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import EngineArgs
from baton.config.processor_names import installed_names
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidConfigError


class Processor:
    """Stands for one; nobody applies it here."""

    class Inner:
        """It has a longer name."""


def test_a_class_object_is_told_by_its_name() -> None:
    args = EngineArgs(logits_processors=[Processor, Processor.Inner, "package.module:function"])
    assert args.logits_processors == (
        f"{__name__}:Processor",
        f"{__name__}:Processor.Inner",
        "package.module:function",
    )
    assert EngineArgs(logits_processors=None).logits_processors == ()
    assert EngineArgs(logits_processors="a:b").logits_processors == ("a:b",)
    with pytest.raises(InvalidConfigError, match="logits_processors is 7; allowed: a list"):
        EngineArgs(logits_processors=7)


def test_classes_of_installed_packages_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_names() == ()
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[vllm.logits_processors]\none = theirs.module:Class\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = worker_settings(EngineArgs(logits_processors=[Processor]))
    assert settings.engine.logits_processors == ("theirs.module:Class", f"{__name__}:Processor")
