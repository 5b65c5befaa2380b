from __future__ import annotations

import pytest

from baton_service.process import exit_without_reader


def test_a_broken_pipe_other_than_standard_output_is_not_hushed_up() -> None:
    with pytest.raises(BrokenPipeError, match="of a worker"), exit_without_reader():
        raise BrokenPipeError("of a worker")
