"""A small BERT, made from a configuration, learns what people think of what they review. Nothing is downloaded.

    python examples/transformers_classifier.py --num-workers 2
    python examples/transformers_classifier.py --name reviews     run it again after a crash: it continues

pip install "paceline[transformers]". The Trainer of Transformers runs inside the workers of a TorchTrainer, on reviews
that are tokenized beside the training. Below the stated accuracy, on reviews it has not seen, this exits with 1.
"""

import argparse
import os
import sys
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # all there is lies in this file; workers inherit it
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
import paceline.data
from paceline import train
from paceline.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.huggingface.transformers import ReportCallback, prepare_trainer
from paceline.train.torch import TorchTrainer

# isort: split
import numpy as np
import tokenizers
import torch
import transformers

STATED_ACCURACY = 0.95
LABELS = ("bad", "good")
THINGS = ("film", "soup", "hotel", "book", "phone", "service", "garden", "concert")
ADVERBS = ("", "very", "really", "quite", "so")
WORDS = {
    "good": ("good", "great", "lovely", "fine", "superb", "charming"),
    "bad": ("bad", "poor", "awful", "dull", "broken", "boring"),
}
LENGTH = 20
"""Tokens of a review; shorter ones are filled up."""


def reviews(num_reviews: int, *, seed: int) -> list[dict[str, Any]]:
    """What others say does not count, and `not` turns a word around: counting good words is not enough."""
    random = np.random.default_rng(seed)

    def chosen(words: tuple[str, ...]) -> str:
        return str(random.choice(words))

    made = []
    for _ in range(num_reviews):
        heard, own = chosen(LABELS), chosen(LABELS)
        negated = random.random() < 0.4
        parts = [f"the {chosen(THINGS)} was", "not" if negated else "", chosen(ADVERBS), chosen(WORDS[own])]
        if random.random() < 0.5:
            parts = [f"they say it is {chosen(ADVERBS)} {chosen(WORDS[heard])} but", *parts]
        made.append({"text": " ".join(" ".join(parts).split()), "labels": LABELS.index(own) ^ int(negated)})
    return made


def new_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token for each word. Your own, from a directory: `AutoTokenizer.from_pretrained(path)`."""
    words = {word for row in reviews(2000, seed=0) for word in row["text"].split()}
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", *sorted(words)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", model_max_length=LENGTH
    )


def encoded(tokenizer: Any, texts: list[str]) -> dict[str, np.ndarray]:
    found = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def tokenized(batch: dict[str, np.ndarray], tokenizer: Any) -> dict[str, np.ndarray]:
    """For `map_batches`: runs where rows are read, while the model is trained on those before."""
    return {**encoded(tokenizer, list(batch["text"])), "labels": batch["labels"]}


def accuracy_of(evaluated: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((evaluated.predictions.argmax(1) == evaluated.label_ids).mean())}


def train_func(config: dict) -> None:
    """Runs on every worker. Transformers finds its rank and its device by itself."""
    transformers.set_seed(config["seed"])
    tokenizer = new_tokenizer()
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
            max_position_embeddings=LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
    )
    batch_size = config["batch_size"]
    with tempfile.TemporaryDirectory() as output_dir:  # the trainer's own copies; the run keeps its own
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=output_dir,
                max_steps=config["steps"],  # datasets that are read as they come have no length
                learning_rate=config["lr"],
                warmup_steps=config["steps"] // 10,
                logging_steps=config["report_every"],
                save_steps=config["report_every"],
                eval_strategy="steps",
                eval_steps=config["report_every"],
                save_total_limit=1,
                ddp_find_unused_parameters=False,  # there are none
                average_tokens_across_devices=False,  # a review has one label, however many tokens
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=train.get_dataset_shard("train").iter_torch_batches(batch_size=batch_size),
            eval_dataset=train.get_dataset_shard("eval").iter_torch_batches(batch_size=batch_size),
            compute_metrics=accuracy_of,
            processing_class=tokenizer,  # saved with the model: whoever has the checkpoint can read text
        )
        trainer.add_callback(ReportCallback())
        trainer = prepare_trainer(trainer)
        if checkpoint := train.get_checkpoint():
            with checkpoint.as_directory() as directory:
                trainer.train(resume_from_checkpoint=os.path.join(directory, ReportCallback.CHECKPOINT_NAME))
        else:
            trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--report-every", type=int, default=40, help="steps from a checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=4000, help="reviews to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()

    tokenizer = new_tokenizer()

    def rows(num_reviews: int, seed: int) -> paceline.data.Dataset:
        texts = paceline.data.from_items(reviews(num_reviews, seed=seed))
        return texts.map_batches(tokenized, fn_kwargs={"tokenizer": tokenizer})

    result = TorchTrainer(
        train_func,
        train_loop_config={
            "steps": args.steps,
            "report_every": args.report_every,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "seed": args.seed,
        },
        datasets={"train": rows(args.samples, seed=1), "eval": rows(400, seed=2)},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="eval_accuracy"),
        ),
    ).fit()

    best = result.get_best_checkpoint("eval_accuracy", "max")
    with best.as_directory() as directory:
        path = os.path.join(directory, ReportCallback.CHECKPOINT_NAME)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)

    def judged(texts: list[str]) -> np.ndarray:
        with torch.no_grad():
            inputs = {name: torch.from_numpy(array) for name, array in encoded(tokenizer, texts).items()}
            return model(**inputs).logits.argmax(1).numpy()

    unseen = reviews(1000, seed=3)
    accuracy = (judged([row["text"] for row in unseen]) == [row["labels"] for row in unseen]).mean()
    for text in ("the film was not very good", "they say it is awful but the soup was really lovely"):
        print(f"{LABELS[judged([text])[0]]:10}  {text}")
    print(f"accuracy    {accuracy:.1%} on {len(unseen)} reviews it has not seen; stated are {STATED_ACCURACY:.0%}")
    print(f"checkpoint  {best.path}")
    if accuracy < STATED_ACCURACY:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
