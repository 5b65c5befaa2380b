from __future__ import annotations

from pathlib import Path

import pytest

from baton.cli import main
from baton.commands.cli_arguments import parse


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "baton.yaml"


def test_keys_are_the_flags_with_or_without_dashes_and_the_command_line_comes_first(config: Path) -> None:
    config.write_text(
        "model: some/model\nport: 9000\nserved-model-name: [a, b]\n--max-model-len: 512\n"
        "max_num_seqs: 7\ngpu-memory-utilization: 1\nexit-with-stdin: true\nsplit: never\n"
    )
    args = parse(["serve", "--config", str(config), "--port", "8100", "--served-model-name", "c"])
    assert (args.model, args.port, args.served_model_name) == ("some/model", 8100, ("c",))
    assert (args.max_model_len, args.max_num_seqs, args.gpu_memory_utilization) == (512, 7, 1.0)
    assert (args.exit_with_stdin, args.split, args.host) == (True, "never", "127.0.0.1")
    args = parse(["serve", "other", "--config", str(config)])
    assert (args.model, args.port, args.served_model_name) == ("other", 9000, ("a", "b"))


def test_a_repeatable_flag_takes_a_list_or_one_value_and_gives_way_to_the_command_line(config: Path) -> None:
    command = ["decode-worker", "--config", str(config)]
    config.write_text("router: [a:1, b:2]\n")
    assert parse(command).router == ("a:1", "b:2")
    assert parse([*command, "--router", "c:3", "--router", "d:4"]).router == ("c:3", "d:4")
    config.write_text("router: a:1\n")
    assert parse(command).router == ("a:1",)


def test_a_file_takes_what_the_command_line_takes(config: Path) -> None:
    config.write_text(
        "decode-context-parallel-size: 1\ndisable-log-stats: true\nfully-sharded-loras: false\n"
        "no-enable-eplb: true\nno-enable-prefix-caching: true\n"
        "disable-log-requests: true\nuvicorn_log_level: debug\n"
        "max-model-len: auto\nallowed-origins: ['*']\nprofiler-config:\n  torch_profiler_dir: /traces\n"
    )
    args = parse(["serve", "--config", str(config), "--disable-uvicorn-access-log"])
    assert (args.enable_prefix_caching, args.max_model_len, args.allowed_origins) == (False, None, ("*",))
    assert args.profiler_config == {"torch_profiler_dir": "/traces"}
    assert args.neutral_flags == (
        *(
            "--disable-uvicorn-access-log",
            "--decode-context-parallel-size",
            "--disable-log-stats",
            "--fully-sharded-loras",
        ),
        *("--enable-eplb", "--uvicorn-log-level"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dcp-comm-backend: a2a", "{path}: dcp-comm-backend is 'a2a'; allowed: None (a worker's ranks are"),
        ("enable-dbo: true", "{path}: enable-dbo is True; allowed: False (a worker's ranks are"),
        (
            "no-use-tqdm-on-load: false\nprompt-adapters: [a]",
            "{path}: prompt-adapters is ['a']; allowed: None",
        ),
        ("max-num-seq: 2", "{path}: key is 'max-num-seq'; did you mean max-num-seqs?; allowed: "),
    ],
)
def test_a_refused_flag_has_its_reason_in_a_file_too(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    config.write_text(text)
    assert main(["serve", "--config", str(config)]) == 2
    assert capsys.readouterr().err.startswith("baton: " + said.format(path=config))


def test_a_number_for_a_text_is_the_text_that_is_written(config: Path) -> None:
    config.write_text("revision: 0123\nserved-model-name: [7, 1.10]\napi-key: 12345\ncpu-bind: 0\n")
    args = parse(["serve", "--config", str(config)])
    assert (args.revision, args.served_model_name) == ("0123", ("7", "1.10"))
    assert (args.api_key, args.cpu_bind) == (("12345",), "0")
    config.write_text("request_rate: 0.5\nmetric-percentiles: 99\nnum-prompts: 3\n")
    args = parse(["bench", "serve", "--config", str(config)])
    assert (args.request_rate, args.metric_percentiles, args.num_prompts) == ("0.5", "99", 3)
    config.write_text("request-rates: [1, 2]\n")
    assert parse(["bench", "sweep", "--config", str(config)]).request_rates == ("1", "2")


def test_texts_and_dotted_keys_are_read_as_on_the_command_line(config: Path) -> None:
    config.write_text(
        "port: '9000'\ngpu-memory-utilization: '0.5'\nmax-model-len: '4k'\nenable-lora: true\n"
        "override-generation-config: '{\"temperature\": 0.5}'\ndecode-context-parallel-size: '1'\n"
        "hf_overrides.rope_parameters.factor: 2\nhf-overrides.rope_parameters.rope_type: yarn\n"
        'allowed-origins: \'["a", "b"]\'\nlora-modules: [{name: a, path: /a}, b=/b]\n'
    )
    args = parse(["serve", "--config", str(config)])
    assert (args.port, args.gpu_memory_utilization, args.max_model_len) == (9000, 0.5, 4000)
    assert args.override_generation_config == {"temperature": 0.5}
    assert args.hf_overrides == {"rope_parameters": {"factor": 2, "rope_type": "yarn"}}
    assert args.allowed_origins == ("a", "b")
    assert args.lora_modules == ('{"name": "a", "path": "/a"}', "b=/b")


def test_null_is_the_default_that_is_none_or_of_a_text(config: Path) -> None:
    config.write_text("quantization: null\nhost: null\nmax-num-seqs: 3\nseed:\n")
    args = parse(["serve", "--config", str(config)])
    assert (args.quantization, args.host, args.max_num_seqs) == (None, "127.0.0.1", 3)


def test_an_empty_file_sets_nothing(config: Path) -> None:
    config.write_text("# nothing\n")
    assert parse(["router", "--config", str(config)]).port == 8000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "{path}: key is 'prot'; did you mean port?; allowed: adaptive-roles, "),
        ("block-size: 32", "{path}: key is 'block-size'; allowed: adaptive-roles, "),
        ("parent-pid: 1", "{path}: key is 'parent-pid'; allowed: adaptive-roles, "),
        ("7: 1", "{path}: key is 7; allowed: adaptive-roles, "),
        ("port: '90000'", "{path}: port is 90000; allowed: an integer from 0 to 65535"),
        ("port: 'x'", "{path}: port is 'x'; allowed: an integer from 0 to 65535"),
        (
            "hf-overrides: 1\nhf-overrides.a: 1\nhf-overrides.a.b: 1",
            "{path}: hf-overrides.a.b is '1'; allowed: no value of 'a' beside its keys",
        ),
        (
            "hf-overrides: {a: 2024-01-01}",
            "{path}: hf-overrides is a dict that JSON cannot hold (Object of type date is not JSON",
        ),
        ("hf-overrides.a: !!set {x}", "{path}: hf-overrides.a is a set that JSON cannot hold (Object of"),
        ("lora-modules: [{1: {2024-01-01: x}}]", "{path}: lora-modules is a dict that JSON cannot hold"),
        ('chat-template: "a\\0b"', "{path}: chat-template is 'a\\x00b'; allowed: text in UTF-8 without"),
        ("port: true", "{path}: port is True; allowed: an integer from 0 to 65535"),
        ("port: 70000", "{path}: port is 70000; allowed: an integer from 0 to 65535"),
        ("port:", "{path}: port is None; allowed: an integer from 0 to 65535"),
        ("host: [a]", "{path}: host is a list; allowed: text in UTF-8"),
        ("port: 0x" + "f" * 5000, "{path}: port is 0xffff"),
        ("? 0x" + "f" * 5000 + "\n: 1", "{path}: key is 0xffff"),
        ("model: --host=h", "{path}: model is '--host=h'; allowed: a folder or a Hugging Face id"),
        ("split: no", "{path}: split is False; allowed: auto, always, never"),
        ("served-model-name: [a, [1]]", "{path}: served-model-name is a list; allowed: 1 to 128 printable"),
        ("served-model-name: [a, true]", "{path}: served-model-name is True; allowed: 1 to 128 printable"),
        ("port: 1\n--port: 2", "{path}: --port is given twice; allowed: once"),
        ("port: 1\nport: 2", "{path}: port is given twice; allowed: once"),
        (
            "- port",
            "--config is '{path}', which holds no flags; allowed: a YAML file of flags and their values",
        ),
        ("port: [", "--config is '{path}', which is no YAML at line 1, column 8; allowed: a YAML file"),
        ("api-key: secret: x", "--config is '{path}', which is no YAML at line 1, column 16; allowed: a"),
        ("api-key: *secret", "--config is '{path}', which is no YAML at line 1, column 10; allowed: a"),
        ("api-key: [sec ret]", "{path}: api-key is a value that is not shown; allowed: 1 to 128 visible"),
        (
            "a: !!python/object/apply:os.system [id]",
            "--config is '{path}', which is no YAML at line 1, column 4; allowed",
        ),
        ("port: !!int ''", "--config is '{path}', which is no YAML; allowed"),
        ("host: !!bool a", "--config is '{path}', which is no YAML; allowed"),
        ("host: !!timestamp a", "--config is '{path}', which is no YAML; allowed"),
        ("[" * 500, "--config is '{path}', which is no YAML; allowed"),
    ],
    ids=lambda value: value[:24],
)
def test_a_wrong_file_is_refused_by_file_key_and_what_is_allowed(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    config.write_text(text)
    assert main(["router", "--config", str(config)]) == 2
    assert capsys.readouterr().err.startswith("baton: " + said.format(path=config))


def test_a_file_that_cannot_be_read_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"baton: --config is '{config}', which cannot be read (No such file")
    config.write_bytes(b"\xff\xfe\xfd")
    assert main(["chat", "--config", str(config)]) == 2
    assert "which is no YAML" in capsys.readouterr().err
