"""A Transformers trainer on two workers: it finds ranks and device, reports what it logs and saves, and resumes."""

import contextlib
import functools
import importlib.util
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from fits import fit_in, gather

import paceline.data
import paceline.train.huggingface.transformers
from paceline import train
from paceline._engine.local.launchers import close_shared_zygote, prewarm
from paceline.train.torch import TorchTrainer

# Looked for, not imported: that is for the workers to do.
pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate")),
    reason="transformers and accelerate are not installed",
)

NUM_ROWS = 128


@pytest.fixture(scope="module", autouse=True)
def imported_ahead():
    """Workers find the slow imports done, for these tests alone."""
    prewarm("transformers.trainer")
    yield
    # Other tests are to fork from a process as small as they would have it.
    close_shared_zygote()


def sentences():
    """Random sentences, labelled by their first word."""
    words = np.random.default_rng(0).integers(2, 16, (NUM_ROWS, 6))
    return [{"input_ids": row, "labels": int(row[0] > 8)} for row in words]


def tiny_model():
    import torch
    import transformers

    torch.manual_seed(0)
    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=16, max_position_embeddings=8, num_labels=2, **layers)
    return transformers.BertForSequenceClassification(config)


def made_trainer(path, train_dataset, eval_dataset, **arguments):
    import transformers

    return transformers.Trainer(
        model=tiny_model(),
        args=transformers.TrainingArguments(
            output_dir=str(path),
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=2,
            save_steps=4,
            save_total_limit=1,
            eval_strategy="steps",
            eval_steps=4,
            report_to=[],
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        compute_metrics=lambda said: {
            "accuracy": float((said.predictions.argmax(-1) == said.label_ids).mean()),
            "rows": len(said.label_ids),
        },
    )


def weights(model):
    return [parameter.double().sum().item() for parameter in model.parameters()]


def on_shards(kills=()):
    """A train function that reads its part of a dataset.

    Rank 1 is killed after a step of each attempt that began from the given checkpoint.
    """

    def train_func():
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch.distributed as dist
        import transformers

        from paceline.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

        class Kill(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if args.process_index == 1 and (newest, state.global_step) in kills:
                    os.kill(os.getpid(), signal.SIGKILL)

        checkpoint = train.get_checkpoint()
        newest = os.path.basename(checkpoint.path) if checkpoint else None
        path = Path(train.get_context().get_storage().experiment_fs_path).parent / "transformers"
        batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=8)
        trainer = made_trainer(path, batches, train.get_dataset_shard("eval"), max_steps=20)
        trainer.add_callback(RayTrainReportCallback())
        trainer.add_callback(Kill())
        trainer = prepare_trainer(trainer)
        group = dist.group.WORLD
        with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as directory:
            trainer.train(resume_from_checkpoint=os.path.join(directory, "checkpoint") if directory else None)
        return gather(
            {
                "rank": trainer.args.process_index,
                "world_size": trainer.args.world_size,
                "device": str(trainer.args.device),
                "wrapped": type(trainer.model_wrapped).__name__,
                "same_group": dist.group.WORLD is group,
                "weights": weights(trainer.model),
            }
        )

    return train_func


fit = functools.partial(fit_in, trainer=TorchTrainer, max_failures=2)


def datasets():
    rows = sentences()
    return {"train": paceline.data.from_items(rows), "eval": paceline.data.from_items(rows[:32])}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("undisturbed"), on_shards(), datasets=datasets())


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    # Of an epoch's eight steps, nothing is left after the checkpoint of step 8, and a half after that of step 12.
    kills = {(None, 9), ("checkpoint_000004", 13)}
    return fit(tmp_path_factory.mktemp("killed"), on_shards(kills), datasets=datasets())


def test_two_workers_with_one_process_group_share_gradients_and_learn_the_labels(undisturbed):
    ranks = undisturbed.return_value
    assert [one["rank"] for one in ranks] == [0, 1]
    found = {(one["world_size"], one["device"], one["wrapped"], one["same_group"]) for one in ranks}
    assert found == {(2, "cpu", "DistributedDataParallel", True)}
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert undisturbed.metrics["eval_accuracy"] >= 0.95
    assert undisturbed.metrics["eval_rows"] == 32, "an evaluation sees the rows of all workers"


def test_what_is_logged_is_reported_and_a_step_that_is_saved_makes_one_report(undisturbed):
    table = undisturbed.metrics_dataframe
    # The last one is what the trainer logs when it is done.
    assert list(table["step"]) == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 20]
    assert list(table["eval_accuracy"].notna()) == [False] + [True] * 10
    assert undisturbed.metrics["train_loss"] > 0
    saved = [checkpoint.path[-2:] for checkpoint, _ in undisturbed.best_checkpoints]
    assert sorted(saved) == ["02", "04", "06", "08", "10"]
    checkpoint = Path(undisturbed.checkpoint.path) / "checkpoint"
    files = {path.name for path in checkpoint.iterdir()}
    assert files >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
    assert files >= {"rng_state_0.pth", "rng_state_1.pth"}, "the random states of all ranks"


@pytest.mark.slow
def test_after_every_kill_the_very_same_training_goes_on(undisturbed, killed):
    assert list(killed.metrics_dataframe["step"]) == list(undisturbed.metrics_dataframe["step"])
    assert list(killed.metrics_dataframe["loss"]) == list(undisturbed.metrics_dataframe["loss"])
    assert killed.return_value[0]["weights"] == undisturbed.return_value[0]["weights"]


@pytest.mark.slow
def test_other_datasets_are_the_trainers_own_to_divide(tmp_path):
    def train_func():
        os.environ["HF_HUB_OFFLINE"] = "1"
        from paceline.train.huggingface.transformers import ReportCallback, prepare_trainer

        class Noted(list):
            def __getitem__(self, index):
                seen.append(index)
                return super().__getitem__(index)

        def refusal(value):
            try:
                prepare_trainer(value)
            except (TypeError, ValueError) as error:
                return str(error)
            return "accepted"

        seen, rows = [], sentences()
        trainer = made_trainer(tmp_path / "a", Noted(rows), rows[:32], num_train_epochs=2)
        trainer.add_callback(ReportCallback())
        trainer = prepare_trainer(trainer)
        trainer.train()
        del os.environ["ACCELERATE_USE_CPU"]
        alone = made_trainer(tmp_path / "b", rows, rows, num_train_epochs=1)
        return gather(
            {"seen": seen, "weights": weights(trainer.model), "refused": [refusal("trainer"), refusal(alone)]}
        )

    result = fit(tmp_path, train_func)
    first, second = result.return_value
    # Of two epochs; the accelerator looks one batch ahead, never beyond its part.
    assert set(first["seen"]) | set(second["seen"]) == set(range(NUM_ROWS))
    assert len(first["seen"]) == len(second["seen"]) == NUM_ROWS
    assert first["weights"] == second["weights"]
    no_trainer, lost = second["refused"]
    assert no_trainer == "trainer must be a transformers.Trainer, got 'trainer'"
    assert lost.startswith("the trainer is set up for rank 0 of 1 on cpu, but this worker is rank 1 of 2 on cpu")
    assert result.metrics["step"] == 16
