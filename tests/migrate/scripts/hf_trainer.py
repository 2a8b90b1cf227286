"""The `Trainer` of Transformers with Ray's callback."""

import ray.train.huggingface.transformers
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, at):
        return {"input_ids": torch.tensor([at % 8, 1, 2]), "labels": at % 2}


def train_func():
    config = BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
    )
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Rows())
    trainer.add_callback(ray.train.huggingface.transformers.RayTrainReportCallback())
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    trainer.train()


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=1)).fit()
assert result.checkpoint is not None
assert result.metrics["epoch"] == 1
