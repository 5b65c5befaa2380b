"""Methods of vLLM's `EngineArgs` that callers may call and that have nothing to do here."""

from __future__ import annotations


class UnneededMethods:
    """Each says why it does nothing."""

    def validate_tensorizer_args(self) -> None:
        """Do nothing: `load_format` does not take tensorizer."""

    def _check_feature_supported(self) -> None:
        """Do nothing: the constructor has checked every field."""

    def _get_min_mm_batched_tokens(self, *args: object) -> int:
        """Return 0: models of text alone are supported."""
        return 0

    def _set_default_chunked_prefill_and_prefix_caching_args(self, *args: object) -> None:
        """Do nothing: the constructor has set the defaults."""

    def _set_default_max_num_seqs_and_batched_tokens_args(self, *args: object) -> None:
        """Do nothing: the constructor has set the defaults."""
