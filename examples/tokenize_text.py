"""Text for a language model: documents are tokenized and packed to rows of equal length while workers use them.

    python examples/tokenize_text.py                                     two workers, text made on the spot
    python examples/tokenize_text.py --name tokens                       run it again after a crash: it continues
    python examples/tokenize_text.py --text 'books/*.jsonl' --tokenizer tokenizer.json --length 2048

Data processes read JSON lines or Parquet, files in another order in each epoch, tokenize with a tokenizer of Hugging
Face, and pack: a row has `length` tokens of one or more documents, `document` tells them apart (attention must not look
across), and what is left at the end of a batch of documents is padded. Workers get rows shuffled in windows. A
checkpoint keeps the place in the text: after a crash no document comes twice. It prints how many documents and tokens
came, and how fast, and exits with 1 if one came twice or more are missing than the two rows that an epoch leaves out at
most.
"""

import argparse
import glob
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from stories import stories_at
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import paceline.data
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

END, PADDING = 0, 1
"""The tokens after a document, and after the last document of a batch."""


def text_at(directory: Path, num_stories: int) -> list[str]:
    """JSON lines with the column `text`, in four files, made once. Your own files go here."""
    paths = []
    for path in sorted(stories_at(directory, num_stories, seed=1, num_files=4).glob("*.txt")):
        lines = path.with_suffix(".jsonl")
        if not lines.exists():
            lines.write_text("".join(json.dumps({"text": story}) + "\n" for story in path.read_text().splitlines()))
        paths.append(str(lines))
    return paths


def tokenizer_at(path: Path, files: list[str]) -> Path:
    """A tokenizer of the text itself, made once. One that you downloaded is used in its place."""
    if not path.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<end>", "<padding>"], show_progress=False)
        with open(files[0]) as lines:
            tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
        tokenizer.save(str(path))
    return path


class PackedTokens:
    """Documents, one after the other, in rows of `length` tokens; a long one goes on in the next row."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length
        self.tokenizer: Tokenizer | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.tokenizer is None:  # in each data process, at its first batch
            self.tokenizer = Tokenizer.from_file(str(self.path))
        documents = [[*encoded.ids, END] for encoded in self.tokenizer.encode_batch(list(batch["text"]))]
        lengths = [len(each) for each in documents]
        num_rows = -(-sum(lengths) // self.length)
        tokens = np.full(num_rows * self.length, PADDING, np.int32)
        document = np.full(num_rows * self.length, -1, np.int32)
        tokens[: sum(lengths)] = np.concatenate(documents)
        document[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
        return {"tokens": tokens.reshape(num_rows, -1), "document": document.reshape(num_rows, -1)}


def read_documents(files: list[str]) -> paceline.data.Dataset:
    read = paceline.data.read_parquet if files[0].endswith(".parquet") else paceline.data.read_json
    return read(files, shuffle="files")


def rows_of(files: list[str], tokenizer: Path, length: int) -> paceline.data.Dataset:
    return read_documents(files).map_batches(PackedTokens(tokenizer, length), batch_size=1000)


def use_tokens(config: dict[str, Any]) -> None:
    """Count what comes, in the place of training."""
    shard = train.get_dataset_shard("text")
    counts = {"documents": 0, "tokens": 0}

    def report() -> None:
        metrics = {name: train.sum(count) for name, count in counts.items()}
        train.report(metrics, checkpoint=Checkpoint.from_dict({}))  # the model, in a script of yours
        counts.update(documents=0, tokens=0)

    batches = shard.iter_batches(batch_size=config["batch_size"], local_shuffle_buffer_size=1000)
    for number, batch in enumerate(batches, 1):
        counts["documents"] += int((batch["tokens"] == END).sum())
        counts["tokens"] += int((batch["document"] >= 0).sum())
        if number % config["report_every"] == 0:
            report()
    report()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--text", help="a pattern of JSON lines or Parquet with the column `text`")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of Hugging Face")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--report-every", type=int, default=20)
    parser.add_argument("--stories", type=int, default=20_000)
    parser.add_argument("--name")
    parser.add_argument("--storage-path", type=Path, default=Path("results"))
    return parser.parse_args()


def main() -> int:
    asked = parse()
    files = sorted(glob.glob(asked.text)) if asked.text else text_at(asked.storage_path / "text", asked.stories)
    tokenizer = asked.tokenizer or tokenizer_at(asked.storage_path / "text" / "tokenizer.json", files)
    began = time.monotonic()
    result = DataParallelTrainer(
        use_tokens,
        train_loop_config={"batch_size": asked.batch_size, "report_every": asked.report_every},
        scaling_config=ScalingConfig(num_workers=asked.num_workers),
        datasets={"text": rows_of(files, tokenizer, asked.length)},
        run_config=RunConfig(
            name=asked.name, storage_path=asked.storage_path, failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
    rows = result.metrics_dataframe
    documents, tokens = int(rows["documents"].sum()), int(rows["tokens"].sum())
    present = read_documents(files).count()
    seconds = time.monotonic() - began
    print(f"documents  {documents} of {present}")
    print(f"tokens     {tokens}, {tokens / seconds:.0f} a second, from the start of the run to its end")
    return 0 if present - 2 * asked.length <= documents <= present else 1


if __name__ == "__main__":
    sys.exit(main())
