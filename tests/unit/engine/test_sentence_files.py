"""Folders that sentence-transformers wrote: its vectors and scores, and what of its files is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_engine.checkpoint.model_fields import read_model_fields
from baton_engine.models.registry import read_model_config
from baton_engine.pooling.sentence_files import read_sentence_files
from baton_engine.pooling.settings import PoolingSettings, read_pooling
from tests.pooling import CLASSIFY, EMBED, EnginePooler

FIXTURES: Final = Path("tests/fixtures/pooling").resolve()
NAMES: Final = sorted(path.parent.name for path in FIXTURES.glob("*/expected.json"))


def pooled(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the engine pools of a fixture's prompts, and what the package does."""
    expected = json.loads((folder / "expected.json").read_text())
    types = expected["token_types"]
    engine = EnginePooler(folder)
    spec = EMBED if EMBED.task in engine.plan.model.tasks else CLASSIFY
    flat = None if types is None else torch.tensor([one for prompt in types for one in prompt])
    found = torch.stack(engine.pool(expected["token_ids"], spec, flat))
    return found, torch.tensor(expected["vectors"])


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_scores_equal_those_of_the_package(name: str) -> None:
    found, expected = pooled(FIXTURES / name)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if expected.shape[1] > 1:
        assert torch.cosine_similarity(found.double(), expected.double()).min() >= 0.99999


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_files_of_older_releases_say_the_same(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "bert-mean-dense-normalize", tmp_path / "model"))
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(modules))
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    older = {"word_embedding_dimension": 16} | modes
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(older))
    change(folder / "sentence_bert_config.json", max_seq_length=40, do_lower_case=True)
    lowering = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    change(folder / "tokenizer.json", normalizer=lowering)
    found, expected = pooled(folder)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert EnginePooler(folder).plan.config.max_position_embeddings == 40


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling_mode is .*max.*; allowed: one of cls"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "pooling_mode is .*; allowed: one of"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is False; allowed: true"),
        (
            "sentence_bert_config.json",
            {"do_lower_case": True},
            "do_lower_case is True; allowed: false, where",
        ),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual is True; allowed: false"),
        ("2_Dense/config.json", {"in_features": 15}, "in_features of 2_Dense is 15; allowed: 16"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "activation_function is 'os.system'"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is"),
    ],
)
def test_what_is_not_implemented_is_refused(
    file: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FIXTURES / "bert-mean-dense-normalize", tmp_path / "model"))
    change(folder / file, **values)
    with pytest.raises(InvalidModelError, match=message):
        EnginePooler(folder)


def test_a_model_that_embeds_needs_a_module_that_pools(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "x.Transformer", "path": ""}]')
    folder = Path(shutil.copytree(FIXTURES / "xlm-roberta-cls", tmp_path / "model"))
    shutil.copy(tmp_path / "modules.json", folder)
    with pytest.raises(InvalidConfigError, match="no Pooling; allowed without it: pooling_type of"):
        EnginePooler(folder)
    assert EnginePooler(folder, pooler={"pooling_type": "CLS"}).plan.pooling_type == "CLS"


def test_a_module_that_pools_makes_a_classifier_embed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "xlm-roberta-cls", tmp_path / "model"))
    change(folder / "config.json", architectures=["XLMRobertaForTokenClassification"])
    found, expected = pooled(folder)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-mean-dense-normalize", "bert-cross-encoder", "qwen3-logit-score"])
def test_a_hostile_value_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / name, tmp_path / "model"))
    further = {"id2label": None, "matryoshka_dimensions": None, "sentence_transformers": None}
    further |= {"classifier_from_token": None, "problem_type": None, "is_causal": None, "num_labels": None}
    refusals: list[str] = []
    for path in folder.rglob("*config*.json"):
        values = json.loads(path.read_text())
        for key in values | (further if path.name == "config.json" else {}):
            for value in (-1, 10**30, 0.5, math.nan, "x" * 1000, [], [{}], {}, {"0": {}}, [1] * 1000):
                path.write_text(json.dumps(values | {key: value}))
                try:
                    config = read_model_config(folder)
                    read_pooling(folder, read_model_fields(folder), config, PoolingSettings())
                except (InvalidModelError, InvalidConfigError) as error:
                    refusals.append(str(error))
        path.write_text(json.dumps(values))
    assert len(refusals) > 50
    assert all("; allowed: " in refusal and len(refusal) < 1200 for refusal in refusals)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("{}", "holds dict; allowed: a JSON list of objects"),
        ('[{"type": "x.Transformer", "path": "../other"}]', "path is '../other'; allowed: a folder inside"),
        ('[{"type": "x.Transformer", "path": "0_Transformer"}]', "path of the Transformer is"),
        ('[{"type": "x.Pooling", "path": "1_Pooling"}]', "type of module 0 is 'x.Pooling'; allowed: Transf"),
        (
            '[{"type": "x.Transformer", "path": ""}, {"type": "x.SpladePooling", "path": "1"}]',
            "type of module 1",
        ),
        (
            '[{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": "1_Dense"}]',
            "type of module 1 is 'x.Dense'; allowed: Pooling, LogitScore behind Transformer",
        ),
    ],
)
def test_broken_lists_of_modules_are_refused(modules: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(InvalidModelError, match=message):
        read_sentence_files(tmp_path)
