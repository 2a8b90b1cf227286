"""Working with text: lines, JSON lines, other formats, transforms, inference, saving."""

import ray

for name, content in {
    "zen.txt": "Simple things first\n\nEven THEN, count\nBeautiful is better\n",
    "logs.json": '{"timestamp": "2022-02-08T15:43:41", "size": 48}\n{"timestamp": "2011-12-29T00:19:10", "size": 51}\n',
    "page.md": "# Rays\n",
}.items():
    with open(name, "w") as file:
        file.write(content)

lines = ray.data.read_text("zen.txt")
assert lines.count() == 3 and ray.data.read_text("zen.txt", drop_empty_lines=False).count() == 4
assert ray.data.read_json("logs.json").take(1)[0]["timestamp"].year == 2022
pages = ray.data.read_binary_files("page.md").map(lambda row: {"text": row["bytes"].decode("utf-8").strip("# \n")})
assert pages.take_all() == [{"text": "Rays"}]


class Labels:
    def __init__(self):
        self.good = {"beautiful", "simple"}

    def __call__(self, batch):
        batch["label"] = ["good" if self.good & {*text.split()} else "none" for text in batch["text"]]
        return batch


lower = lines.map(lambda row: {"text": row["text"].lower()})
labelled = lower.map_batches(Labels, compute=ray.data.ActorPoolStrategy(size=2), batch_size="auto")
assert [row["label"] for row in labelled.take_all()] == ["good", "none", "good"]
labelled.write_parquet("results")
assert ray.data.read_parquet("results").take(1)[0] == {"text": "simple things first", "label": "good"}
