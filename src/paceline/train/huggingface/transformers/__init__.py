"""Training with the `Trainer` of Hugging Face Transformers, inside the train function of a `TorchTrainer`.

Importing this module lets the process that workers fork from preload what Transformers needs. Each worker imports
Transformers itself: on import it reads variables such as HF_HOME, which a script may set after this line.
"""

from typing import TYPE_CHECKING

from paceline._core.lazy_imports import make_lazy_getattr, raise_missing
from paceline._engine.local.launchers import prewarm
from paceline.train.backend import require
from paceline.train.huggingface.transformers.prepare import prepare_trainer
from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from typing import Any

    from paceline.train.huggingface.transformers.report import RayTrainReportCallback, ReportCallback

__all__ = ["RayTrainReportCallback", "ReportCallback", "prepare_trainer"]

_find = make_lazy_getattr(
    __name__, {"paceline.train.huggingface.transformers.report": ("RayTrainReportCallback", "ReportCallback")}
)


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise_missing(__name__, name, __all__)
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
