"""`vllm` in the processes of `baton as-vllm`: the names that vLLM documents, which are Baton's."""

import sys

from baton.vllm_alias.finder import VllmFinder

_finder = VllmFinder()
_finder.exec_module(sys.modules[__name__])
sys.meta_path.append(_finder)
