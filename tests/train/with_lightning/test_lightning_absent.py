"""Without Lightning the rest works, and who asks for it is told what to install."""

LAZY = """
import sys
import paceline.train.lightning
import paceline.train.huggingface.transformers

heavy = {"torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "numpy"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""

BLOCKED = """
import sys

for name in ("lightning", "pytorch_lightning", "transformers", "accelerate"):
    sys.modules[name] = None

from paceline import train
import paceline.train.lightning
import paceline.train.huggingface.transformers


def asked_for(module, name):
    try:
        getattr(module, name)
    except ImportError as error:
        return str(error)


told = asked_for(paceline.train.lightning, "RayDDPStrategy")
assert told.startswith("paceline.train.lightning.RayDDPStrategy needs lightning, which is not installed"), told
assert 'pip install "paceline[lightning]"' in told, told
told = asked_for(paceline.train.huggingface.transformers, "ReportCallback")
assert "needs transformers and accelerate" in told, told
assert 'pip install "paceline[transformers]"' in told, told

from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

result = DataParallelTrainer(
    lambda: train.report({"i": 1}),
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(storage_path=sys.argv[1]),
).fit()
assert result.metrics == {"i": 1}
"""


def test_importing_ours_imports_no_framework(run_script):
    ended = run_script(LAZY, env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stderr


def test_with_the_frameworks_blocked_the_rest_works_and_the_extra_is_named(run_script, tmp_path):
    ended = run_script(BLOCKED, str(tmp_path / "storage"), env={"PACELINE_PREWARM": "0"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
