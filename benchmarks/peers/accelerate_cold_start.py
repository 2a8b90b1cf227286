"""One sum over two workers. Argument: a directory for the result."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1), reduction="sum")
result = {"total": total.item()}
Path(sys.argv[1], f"rank_{accelerator.process_index}.json").write_text(json.dumps(result))
accelerator.end_training()
