"""Training with the libraries of Hugging Face: `transformers` has its trainer; Accelerate needs nothing of ours."""

from paceline._core.lazy import on_demand

__getattr__ = on_demand(__name__, {}, submodules=("transformers",))
