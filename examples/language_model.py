"""A small GPT, trained from scratch on the bytes of text files; in the end the best one writes a text of its own.

    python examples/language_model.py                              two workers on CPUs, with DDP
    python examples/language_model.py --name stories               run it again after a crash: it continues
    python examples/language_model.py --num-workers 1 --use-gpu    a GPU for each worker, FSDP in bf16; add --compile
    python examples/language_model.py --text 'books/*.txt'         your own text, every tenth file of it to validate on

Without --text it makes its text: short stories, of which a bigram model (the counts of which byte follows which) needs
2.9 bits a byte. Above the stated bits per byte on stories that it was not trained on, it exits with 1; with a text of
yours, above those of the bigram model.

Text streams: data processes read files, cut what is in them into blocks and hand those over in shared memory. A
checkpoint in the middle of an epoch keeps the place in the text as well as model, optimizer and learning rate.
"""

import argparse
import glob
import math
import sys
import time
from pathlib import Path

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
import paceline.data
from paceline import train
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from paceline.train.torch import ShardedCheckpoint, TorchTrainer, get_device, prepare_model

# isort: split
import numpy as np
import torch
import torch.distributed as dist
from stories import stories_at
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

STATED_BITS = 1.0
"""Bits per byte of validation text. A model that knew how the stories are made would need 0.12: 34 bits for a story."""
NUM_BYTES = 256


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: by where it stands, each vector is turned, so that a product of two tells how far apart."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1).type_as(x)


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.attention(self.norm_1(x)).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(turned(query, cos, sin), turned(key, cos, sin), value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, context: int, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.context = context
        self.head_width = width // num_heads
        self.bytes = nn.Embedding(NUM_BYTES, width)
        nn.init.normal_(self.bytes.weight, std=0.3)
        # What stands in a ModuleList is what FSDP gathers, and torch.compile compiles, one by one.
        self.blocks = nn.ModuleList([Block(width, num_heads) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_BYTES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        speeds = 1000 ** (-torch.arange(0, self.head_width, 2, device=tokens.device) / self.head_width)
        angles = torch.outer(places, speeds)
        cos, sin = angles.cos(), angles.sin()
        x = self.bytes(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


class Packed:
    """Runs in the data processes: lines of text become blocks of equal length, each with one byte more to predict."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        text = "".join(f"{line}\n" for line in batch["text"]).encode()
        num_blocks = len(text) // self.length  # of the last lines of a batch, less than a block is left out
        return {"tokens": np.frombuffer(text, np.uint8)[: num_blocks * self.length].reshape(num_blocks, self.length)}


def blocks_of(files: list[str], context: int) -> paceline.data.Dataset:
    return paceline.data.read_text(files, shuffle="files").map_batches(Packed(context + 1), batch_size=256)


def train_func(config: dict) -> None:
    """Runs on every worker."""
    torch.manual_seed(0)
    context = train.get_context()
    shard = train.get_dataset_shard("train")
    on_gpu = get_device().type == "cuda"
    model = prepare_model(
        GPT(**config["model"]),
        parallel_strategy=config["strategy"],
        mixed_precision="bf16" if on_gpu else None,
        compile=config["compile"],
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, config["steps"]))

    # Every rank stores the shards it has. Under DDP all have the same, and of these one is stored.
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    step = 0
    is_resumed = (checkpoint := train.get_checkpoint()) is not None
    if is_resumed:
        step = ShardedCheckpoint(checkpoint).load_into(state)["step"]

    began, num_tokens = time.monotonic(), 0
    while step < config["steps"]:
        step_before = step
        # A restart comes here with the rest of the epoch first. Windows of blocks are shuffled, in files that are.
        for batch in shard.iter_torch_batches(drop_last=True, local_shuffle_buffer_size=1000):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            num_tokens += batch["tokens"][:, 1:].numel() * context.get_world_size()
            if step % config["report_every"] == 0 or step == config["steps"]:
                metrics = {"step": step, "loss": loss.item()}  # waits for a GPU, so the time before it is whole
                metrics["tokens_per_s"] = num_tokens / (time.monotonic() - began)
                metrics["bits_per_byte"] = validated(model)
                if context.get_world_rank() == 0:
                    bits, speed = metrics["bits_per_byte"], metrics["tokens_per_s"]
                    print(f"step {step}: {bits:.3f} bits per byte, {speed:,.0f} tokens/s")
                # It is copied now and written while the next steps are made. The place in the text goes with it.
                train.report(
                    metrics,
                    checkpoint=ShardedCheckpoint.from_state({**state, "step": step}),
                    checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                )
                began, num_tokens = time.monotonic(), 0
            if step == config["steps"]:
                break
        if step == step_before and not is_resumed:
            raise ValueError("the text has less than one batch: use a smaller --batch-size or --context")
        is_resumed = False


def learning_rate(step: int, num_steps: int) -> float:
    """What the rate is multiplied with: a rise over the first steps, then half a cosine down to a tenth."""
    num_rising = min(20, num_steps // 10 + 1)
    if step < num_rising:
        return (step + 1) / num_rising
    done = (step - num_rising) / max(1, num_steps - num_rising)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    tokens = batch["tokens"].long()
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def validated(model: nn.Module) -> float:
    """Bits per byte over the validation text of all workers together.

    All workers have equally many blocks, so that all call a sharded model equally often: each call takes all of them.
    """
    sums = torch.zeros(2, device=get_device(), dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for batch in train.get_dataset_shard("validation").iter_torch_batches():
            sums += torch.stack([loss_of(model, batch).double(), sums.new_ones(())]) * len(batch["tokens"])
    model.train()
    dist.all_reduce(sums)
    nats, num_blocks = sums.tolist()
    if num_blocks == 0:
        raise ValueError("the validation text has less than one block for each worker: use a smaller --context")
    return nats / num_blocks / math.log(2)


def bigram_bits(train_files: list[str], validation_files: list[str]) -> float:
    """Bits per byte of the model to beat: how often each byte followed the one before it."""
    counts = np.full((NUM_BYTES, NUM_BYTES), 0.1)
    for file in train_files:
        text = np.frombuffer(Path(file).read_bytes(), np.uint8)
        np.add.at(counts, (text[:-1], text[1:]), 1)
    bits = -np.log2(counts / counts.sum(1, keepdims=True))
    texts = [np.frombuffer(Path(file).read_bytes(), np.uint8) for file in validation_files]
    return float(np.concatenate([bits[text[:-1], text[1:]] for text in texts]).mean())


@torch.no_grad()
def written_by(checkpoint: Checkpoint, sizes: dict, beginning: str, num_bytes: int, device: str) -> str:
    """A text that the model of a checkpoint goes on with. Loaded whole, in this process, however it was sharded."""
    torch.set_num_threads(1)  # byte by byte there is too little to do for several
    model = GPT(**sizes).to(device).eval()
    ShardedCheckpoint(checkpoint).load_into({"model": model})
    dice = torch.Generator(device).manual_seed(0)
    tokens = torch.tensor([list(beginning.encode())], device=device)
    for _ in range(num_bytes):
        logits = model(tokens[:, -model.context :])[:, -1]
        # Below 1, the likely becomes likelier.
        chosen = torch.multinomial((logits / 0.6).softmax(-1), 1, generator=dice)
        tokens = torch.cat([tokens, chosen], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], help="by default fsdp on GPUs and ddp on CPUs")
    parser.add_argument("--compile", action="store_true", help="with torch.compile; on a CPU it takes a C++ compiler")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=16, help="blocks of text, of all workers together")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--context", type=int, default=128, help="bytes that the model looks back")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--report-every", type=int, default=50, help="steps; each report validates, with a checkpoint")
    parser.add_argument("--stories", type=int, default=6000, help="to make and train on, unless there is --text")
    parser.add_argument("--text", help="text files of your own, as a pattern")
    parser.add_argument("--write", type=int, default=200, help="bytes of a text of its own, in the end")
    parser.add_argument("--max-bits", type=float, default=STATED_BITS, help="of a byte, else it exits with 1")
    parser.add_argument("--storage-path", default="results", help="where the run is kept, and the stories")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()
    if args.width % (2 * args.heads):
        parser.error(f"--width {args.width} is not a multiple of twice --heads {args.heads}")

    storage = Path(args.storage_path).absolute()
    if args.text:
        files = sorted(glob.glob(args.text))
        train_files, validation_files = [file for file in files if file not in files[::10]], files[::10]
        if not train_files:
            parser.error(f"--text {args.text!r} names {len(files)} files: it takes two or more")
    else:
        made = stories_at(storage / f"stories-{args.stories}", args.stories, num_files=8, seed=1)
        kept_apart = stories_at(storage / "stories-apart", 100, num_files=2, seed=2)
        train_files, validation_files = (sorted(map(str, path.glob("*.txt"))) for path in (made, kept_apart))
    bigram = bigram_bits(train_files, validation_files)
    stated = bigram if args.text else args.max_bits
    print(f"to be reached: {stated:.2f} bits per byte, where a bigram model needs {bigram:.2f}")

    sizes = {"context": args.context, "width": args.width, "num_layers": args.layers, "num_heads": args.heads}
    result = TorchTrainer(
        train_func,
        train_loop_config={
            "model": sizes,
            "steps": args.steps,
            "lr": args.lr,
            # Sharding saves memory that a small model on CPUs has no need of, at the price of more messages.
            "strategy": args.strategy or ("fsdp" if args.use_gpu else "ddp"),
            "compile": args.compile,
            "report_every": args.report_every,
        },
        datasets={
            "train": blocks_of(train_files, args.context),
            "validation": blocks_of(validation_files, args.context),
        },
        # Each worker gets its share of a batch, so that the training is the same on any number of them.
        scaling_config=ScalingConfig(args.num_workers, use_gpu=args.use_gpu, global_batch_size=args.batch_size),
        run_config=RunConfig(
            name=args.name,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="bits_per_byte", checkpoint_score_order="min"
            ),
        ),
    ).fit()

    best = result.get_best_checkpoint("bits_per_byte", "min")
    bits = min(metrics["bits_per_byte"] for _, metrics in result.best_checkpoints)
    device = "cuda" if args.use_gpu else "cpu"
    beginning = Path(validation_files[0]).read_text()[:20]
    print(f"\nwritten by {best.path}:\n\n{written_by(best, sizes, beginning, args.write, device)}\n")
    print(f"bits per byte  {bits:.3f}, of a bigram model {bigram:.3f}")
    if bits > stated:
        sys.exit(f"that is above the {stated:.2f} that this example states")


if __name__ == "__main__":
    main()
