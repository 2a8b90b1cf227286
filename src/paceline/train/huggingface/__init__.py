"""Training with Hugging Face libraries. `transformers` supports its `Trainer`; Accelerate works without any
integration."""

from paceline._core.lazy_imports import make_lazy_getattr

__getattr__ = make_lazy_getattr(__name__, {}, submodules=("transformers",))
