"""Training with the `Trainer` of Hugging Face Transformers, inside a train function of a `TorchTrainer`.

To import this lets the process that workers fork from import what Transformers needs, while the script goes on
importing. Transformers itself is left to each worker: when it is imported it reads variables such as HF_HOME, and a
script may set those after this line.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy import on_demand
from paceline._engine.local.launch import prewarm
from paceline.train.backend import require
from paceline.train.huggingface.transformers.prepare import prepare_trainer
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from typing import Any

    from paceline.train.huggingface.transformers.report import RayTrainReportCallback, ReportCallback

__all__ = ["RayTrainReportCallback", "ReportCallback", "prepare_trainer"]

_find = on_demand(
    __name__, {"paceline.train.huggingface.transformers.report": ("RayTrainReportCallback", "ReportCallback")}
)


def __getattr__(name: str) -> "Any":
    if name in __all__:
        require(f"{__name__}.{name}", ("transformers", "accelerate"), "transformers")
    return _find(name)


prewarm(
    *TorchConfig.preload,
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "safetensors.torch",
    "scipy.optimize",
)
