"""Lightning on two workers: one process group, ranks and devices of the run, and reports that it resumes from."""

import ast
import contextlib
import functools
import importlib.util
import os
import re
import signal
import time
from pathlib import Path

import pytest
from fits import fit_in, gather

import paceline.data
import paceline.train.lightning
from paceline import train
from paceline._engine.local.launchers import close_shared_zygote, prewarm
from paceline.train import PreemptionError, ScalingConfig
from paceline.train.torch import TorchTrainer

# Looked for, not imported: that is for the workers to do.
pytestmark = pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="lightning is not installed")

NUM_ROWS = 64
SLOPES = [1.0, 2.0, -1.0, 0.5]


@pytest.fixture(scope="module", autouse=True)
def imported_ahead():
    """Workers find the slow imports done, for these tests alone."""
    prewarm("torch._dynamo", "torchmetrics")
    yield
    # Other tests are to fork from a process as small as they would have it.
    close_shared_zygote()


fit = functools.partial(fit_in, trainer=TorchTrainer)


def regression(pl):
    """A model that notes which rows it is given and with which learning rate, and the rows."""
    import torch

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(len(SLOPES), 1)
            self.rows = {}
            self.rates = {}

        def error(self, batch):
            return ((self.layer(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

        def training_step(self, batch, index):
            self.rows.setdefault(self.current_epoch, []).extend(batch["row"].tolist())
            loss = self.error(batch)
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.error(batch), sync_dist=True)

        def on_train_epoch_start(self):
            self.rates[self.current_epoch] = self.optimizers().param_groups[0]["lr"]

        def on_train_epoch_end(self):
            self.log("logged_last", float(self.current_epoch), sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]

    torch.manual_seed(0)
    x = torch.randn(NUM_ROWS, len(SLOPES), generator=torch.Generator().manual_seed(0))
    rows = [{"x": x[row], "y": x[row] @ torch.tensor(SLOPES), "row": row} for row in range(NUM_ROWS)]
    return Line(), rows


def resuming(kill_in_epoch=None, package="lightning.pytorch", moment="train_epoch_end"):
    """A train function that goes on from its checkpoint; on the first attempt rank 1 is killed within an epoch."""

    def train_func():
        import torch.distributed as dist
        from torch.utils.data import DataLoader

        pl = importlib.import_module(package)
        from paceline.train import lightning as ours

        class Kill(pl.Callback):
            def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
                here = (trainer.current_epoch, batch_idx, trainer.global_rank, checkpoint)
                if here == (kill_in_epoch, 1, 1, None):
                    os.kill(os.getpid(), signal.SIGKILL)

        checkpoint = train.get_checkpoint()
        model, rows = regression(pl)
        group = dist.group.WORLD
        trainer = ours.prepare_trainer(
            pl.Trainer(
                max_epochs=6,
                devices="auto",
                accelerator="auto",
                strategy=ours.RayDDPStrategy(),
                plugins=[ours.RayLightningEnvironment()],
                callbacks=[ours.RayTrainReportCallback(moment), Kill()],
                enable_checkpointing=False,
                logger=False,
                default_root_dir=train.get_context().get_storage().experiment_fs_path,
            )
        )
        loaders = DataLoader(rows, batch_size=8, shuffle=True), DataLoader(rows, batch_size=8)
        with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as directory:
            trainer.fit(model, *loaders, ckpt_path=os.path.join(directory, "checkpoint.ckpt") if directory else None)
        return gather(
            {
                "rank": trainer.global_rank,
                "world_size": trainer.world_size,
                "device": str(trainer.strategy.root_device),
                "same_group": dist.group.WORLD is group,
                "weights": model.layer.weight.tolist(),
                "rows": list(model.rows.items()),
                "rates": list(model.rates.items()),
            }
        )

    return train_func


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("undisturbed"), resuming())


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("killed"), resuming(kill_in_epoch=3), max_failures=1)


def test_two_workers_with_one_process_group_divide_the_rows_share_gradients_and_learn(undisturbed):
    ranks = undisturbed.return_value
    assert [one["rank"] for one in ranks] == [0, 1]
    assert {(one["world_size"], one["device"], one["same_group"]) for one in ranks} == {(2, "cpu", True)}
    parts = [dict(one["rows"]) for one in ranks]
    for epoch in range(6):
        assert len(parts[0][epoch]) == len(parts[1][epoch]) == NUM_ROWS // 2
        assert sorted(parts[0][epoch] + parts[1][epoch]) == list(range(NUM_ROWS))
    assert parts[0][0] != parts[0][1], "divided anew in every epoch"
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["weights"][0] == pytest.approx(SLOPES, abs=0.4)
    assert undisturbed.metrics["val_loss"] < 0.2


def test_every_epoch_is_reported_with_what_was_logged_and_one_file_of_rank_0(undisturbed):
    table = undisturbed.metrics_dataframe
    assert list(table["epoch"]) == list(table["logged_last"]) == list(range(6))
    assert list(table["step"]) == [4, 8, 12, 16, 20, 24]
    assert table["loss"].iloc[-1] < table["loss"].iloc[0]
    assert all(type(value) in (int, float) for value in undisturbed.metrics.values())
    files = [path.name for path in Path(undisturbed.checkpoint.path).iterdir() if not path.name.startswith(".")]
    assert files == ["checkpoint.ckpt"]


def test_rank_0_alone_says_what_lightning_has_to_say(undisturbed):
    logs = Path(undisturbed.path) / "logs" / "attempt_1"
    first, second = ((logs / f"rank_{rank}.log").read_text() for rank in range(2))
    noise = r"Tip:|GPU available|Epoch \d|num_workers|Total params|is deprecated"
    assert re.search(noise, first)
    assert not re.search(noise, second)


@pytest.mark.slow
def test_after_a_kill_the_very_same_run_goes_on(undisturbed, killed):
    before, after = undisturbed.return_value[0], killed.return_value[0]
    assert [epoch for epoch, _ in after["rows"]] == [3, 4, 5], "it began where the newest checkpoint was"
    assert after["rows"] == before["rows"][3:]
    assert after["rates"] == before["rates"][3:]
    assert after["weights"] == before["weights"]
    assert killed.metrics == undisturbed.metrics


def test_both_packages_of_lightning_have_the_same_classes():
    directory = Path(paceline.train.lightning.__file__).parent
    ours, others = (
        [ast.unparse(node) for node in ast.parse((directory / name).read_text()).body[1:]]
        for name in ("lightning_classes.py", "pytorch_lightning_classes.py")
    )
    assert sorted(line.replace("lightning.pytorch", "pytorch_lightning") for line in ours) == sorted(others)
    assert sum(line.startswith("class ") for line in ours) == 8


@pytest.mark.slow
def test_pytorch_lightning_is_served_too_and_a_notice_of_preemption_stops_at_the_next_report(tmp_path):
    if not importlib.util.find_spec("pytorch_lightning"):
        pytest.skip("pytorch_lightning is not installed")
    ordinary = resuming(package="pytorch_lightning", moment="validation_end")

    def train_func():
        import pytorch_lightning as pl

        if train.get_checkpoint() is None:
            at_start = pl.LightningModule.on_train_batch_start

            def noticed(self, batch, batch_idx):
                if (self.current_epoch, batch_idx, self.global_rank) == (1, 2, 0):
                    os.kill(os.getpid(), signal.SIGTERM)
                    # Two steps further on is a report: the driver has to know by then.
                    journal, until = tmp_path / "run" / "journal.jsonl", time.monotonic() + 60
                    notice = b'"type":"preemption_notice_received"'
                    while notice not in journal.read_bytes() and time.monotonic() < until:
                        time.sleep(0.001)
                return at_start(self, batch, batch_idx)

            pl.LightningModule.on_train_batch_start = noticed
        return ordinary()

    with pytest.raises(PreemptionError):
        fit(tmp_path, train_func)
    result = fit(tmp_path, train_func)
    assert [[epoch for epoch, _ in one["rows"]] for one in result.return_value] == [[2, 3, 4, 5]] * 2
    assert list(result.metrics_dataframe["epoch"]) == list(range(6))
    assert result.metrics["val_loss"] < 0.2


@pytest.mark.slow
def test_loaders_that_are_divided_already_and_callbacks_of_ones_own_are_left_as_they_are(tmp_path):
    def train_func():
        import lightning.pytorch as pl
        from torch.utils.data import DataLoader

        from paceline.train.lightning import PacelineDDPStrategy, ReportCallback
        from paceline.train.torch import prepare_data_loader

        seen = []
        _, rows = regression(pl)
        prepared = prepare_data_loader(DataLoader(rows, batch_size=8, shuffle=True))
        for batches in (prepared, train.get_dataset_shard("train").iter_torch_batches(batch_size=8)):
            model, _ = regression(pl)
            keeping = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "kept", monitor="logged_last", mode="max")
            callbacks = [ReportCallback(), keeping]
            trainer = pl.Trainer(max_epochs=2, strategy=PacelineDDPStrategy(), callbacks=callbacks, logger=False)
            trainer.fit(model, batches)
            seen.append(list(model.rows.values()))
            assert trainer.checkpoint_callback is keeping
        return gather(seen)

    import numpy as np

    rows = [{"x": np.ones(len(SLOPES), "float32"), "y": np.float32(1), "row": row} for row in range(NUM_ROWS)]
    data = paceline.data.from_items(rows)
    result = fit(tmp_path, train_func, datasets={"train": data})
    first, second = result.return_value
    for of_first, of_second in zip(first, second, strict=True):
        for epoch in range(2):
            assert sorted(of_first[epoch] + of_second[epoch]) == list(range(NUM_ROWS))
    # What the callback beside ours had just kept is in our checkpoint.
    import torch

    saved = torch.load(Path(result.checkpoint.path) / "checkpoint.ckpt", weights_only=False)
    (state,) = (state for name, state in saved["callbacks"].items() if name.startswith("ModelCheckpoint"))
    assert state["best_model_score"] == 1


def test_what_does_not_fit_the_workers_is_refused_and_says_what_to_change(tmp_path, monkeypatch):
    for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # Importing Lightning sets them.
    from paceline.train.lightning import RayDDPStrategy

    made_in_the_script = RayDDPStrategy()

    def train_func():
        import lightning.pytorch as pl
        from lightning.pytorch.plugins.environments import LightningEnvironment
        from lightning.pytorch.strategies import DDPStrategy

        from paceline.train import lightning as ours
        from paceline.train.lightning import PacelineDDPStrategy, prepare_trainer

        class OfACluster(LightningEnvironment):
            pass

        def make_trainer(**arguments):
            return pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", **arguments)

        def refusal(act):
            try:
                act()
            except (ValueError, TypeError, RuntimeError, ImportError) as error:
                return f"{type(error).__name__}: {error}"
            return "accepted"

        return [
            refusal(lambda: prepare_trainer(make_trainer(strategy=PacelineDDPStrategy()))),
            refusal(lambda: prepare_trainer(make_trainer(strategy=made_in_the_script))),
            refusal(lambda: prepare_trainer(make_trainer(strategy=DDPStrategy(), devices=1))),
            refusal(lambda: prepare_trainer(make_trainer(strategy=PacelineDDPStrategy(), devices=7))),
            refusal(lambda: prepare_trainer(make_trainer(strategy=PacelineDDPStrategy(), num_nodes=3))),
            refusal(lambda: make_trainer(strategy=PacelineDDPStrategy(), plugins=[OfACluster()])),
            refusal(lambda: prepare_trainer("trainer")),
            refusal(lambda: ours.ReportCallback(on="never")),
            refusal(ours.PacelineFSDPStrategy),
            refusal(ours.PacelineDeepSpeedStrategy),
        ]

    hint = r"hint: Trainer\(strategy=PacelineDDPStrategy\(\), plugins=\[PacelineLightningEnvironment\(\)\]"
    expected = [
        "accepted",
        "accepted",
        rf"ValueError: strategy=DDPStrategy ignores the ranks and devices of this run[\s\S]*{hint}",
        "ValueError: devices=7, but each worker is one process with one device, cpu",
        "ValueError: num_nodes=3, but the workers of this run are on 1",
        "ValueError: OfACluster does not know the workers of this run",
        "TypeError: trainer must be a lightning.pytorch.Trainer, got 'trainer'",
        "ValueError: on must be 'train_epoch_end' or 'validation_end', got 'never'",
        "RuntimeError: PacelineFSDPStrategy needs a GPU",
        "" if importlib.util.find_spec("deepspeed") else r'[\s\S]*pip install "paceline\[deepspeed\]"',
    ]
    outcomes = fit(tmp_path, train_func, 1).return_value
    assert [line for line, pattern in zip(outcomes, expected, strict=True) if not re.match(pattern, line)] == []


@pytest.mark.parametrize("strategy", ["PacelineDDPStrategy", "PacelineFSDPStrategy"])
def test_lightning_trains_on_a_gpu_and_resumes(tmp_path, strategy):
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"no GPU: {strategy} on one, its device and its checkpoint were not checked")

    def train_func():
        import lightning.pytorch as pl
        from torch.utils.data import DataLoader

        import paceline.train.lightning as ours

        model, rows = regression(pl)
        model.configure_optimizers = lambda: torch.optim.Adam(model.trainer.model.parameters(), lr=0.3)
        checkpoint = train.get_checkpoint()
        sharded = {"state_dict_type": "sharded"} if "FSDP" in strategy else {}
        trainer = pl.Trainer(
            max_epochs=8 if checkpoint else 4,
            strategy=getattr(ours, strategy)(**sharded),
            callbacks=[ours.ReportCallback()],
            enable_checkpointing=False,
            logger=False,
        )
        ours.prepare_trainer(trainer)
        with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as directory:
            path = os.path.join(directory, "checkpoint.ckpt") if directory else None
            trainer.fit(model, DataLoader(rows, batch_size=8), ckpt_path=path)
        return str(trainer.strategy.root_device), sorted(model.rows)

    gpus = ScalingConfig(1, use_gpu=True)
    first = fit(tmp_path, train_func, gpus, name="first")
    assert first.return_value == ["cuda:0", [0, 1, 2, 3]]
    second = fit(tmp_path, train_func, gpus, name="second", resume_from_checkpoint=first.checkpoint)
    assert second.return_value == ["cuda:0", [4, 5, 6, 7]]
    assert second.metrics["loss"] < 0.2
