"""LoRA adapters: their tensors, and the layers whose outputs they change."""
