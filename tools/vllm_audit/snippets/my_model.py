"""The example of a model's class that takes the whole configuration, and of its registration."""

from torch import nn
from vllm import ModelRegistry
from vllm.config import VllmConfig


class MyModel(nn.Module):
    """A model of one's own."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config


ModelRegistry.register_model("MyModelForCausalLM", MyModel)
assert "MyModelForCausalLM" in ModelRegistry.get_supported_archs()
