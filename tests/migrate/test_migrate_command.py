"""`paceline migrate`: imports change and nothing else does, and what differs is listed with the notes of errors."""

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline._core.ray_names import MODULES
from paceline.cli import main

CASES = {
    "import ray.train\nray.train.report({})": "import paceline.train\npaceline.train.report({})",
    "from ray import train, tune  # both": "from paceline import train, tune  # both",
    "from ray.train import (\n    X,  # it\n)": "from paceline.train import (\n    X,  # it\n)",
    "import ray.train.torch as t": "import paceline.train.torch as t",
    "import ray\n\nray.data.range(3)": "import paceline\n\npaceline.data.range(3)",
    "import ray as r\nr.tune.run(f)": "import paceline as r\nr.tune.run(f)",
    "import ray as r\nr.data.x(r.get(y))": "import paceline\nimport ray as r\npaceline.data.x(r.get(y))",
    # Unused, and only used for what is ours: dropped, with what stood above it kept.
    "# top\nimport ray\nfrom ray.air import session": "# top\nfrom paceline.air import session",
    "def f():\n    import ray\n": "def f():\n    pass\n",
    "import os, ray, sys": "import os, sys",
    "import ray; from ray import tune; x = 1": "from paceline import tune; x = 1",
    # Ray Core keeps its import.
    "import ray\nray.init()\nray.train.report()": "import paceline\nimport ray\nray.init()\npaceline.train.report()",
    "import ray.train\nray.get(x)": "import paceline.train\nimport ray\nray.get(x)",
    "from ray import get, train  # noqa": "from paceline import train  # noqa\nfrom ray import get  # noqa",
    "from ray import (\n    get,\n    tune,\n)": "from paceline import (\n    tune,\n)\nfrom ray import (\n    get,\n)",
    "import ray\nf(ray)": "import ray\nf(ray)",
    "try:\n    import ray\nexcept E:\n    ray = None": "try:\n    import ray\nexcept E:\n    ray = None",
    "from ray.rllib import x\nimport ray.util": "from ray.rllib import x\nimport ray.util",
    # Each scope for itself, and names that are not Ray's.
    "import ray\ndef f():\n    import ray.data\n    ray.data.x\nray.put(1)": (
        "import ray\ndef f():\n    import paceline.data\n    paceline.data.x\nray.put(1)"
    ),
    "import ray\nray.train.x\nimport ray.train": "import paceline\npaceline.train.x\nimport paceline.train",
    "ray = 1\nray.train": "ray = 1\nray.train",
    "from .ray import train": "from .ray import train",
    # Texts that name a module, and those that only look like it.
    "import ray\ndef f(x: 'ray.train.Result'): ...": "import paceline\ndef f(x: 'paceline.train.Result'): ...",
    "importlib.import_module('ray.train.torch')": "importlib.import_module('paceline.train.torch')",
    "x = {'py_modules': ['ray.train', './ray.train/x']}": "x = {'py_modules': ['paceline.train', './ray.train/x']}",
    "print('ray.train')": "print('ray.train')",
    # Older paths.
    "from ray.train.v2.jax import JaxTrainer": "from paceline.train.jax import JaxTrainer",
    "from ray.tune.suggest import Searcher": "from paceline.tune.search import Searcher",
    # Modules inside of a package.
    "from ray.tune.experiment.trial import Trial": "from paceline.tune.experiment import Trial",
    "import ray.train.v2.api.exceptions\nray.train.v2.api.exceptions.E": "import paceline.train\npaceline.train.E",
    "from ray.tune import (\n    suggest as s,\n    run,\n)": (
        "from paceline.tune import (\n    run,\n)\nfrom paceline.tune import search as s"
    ),
    "from ray.train.base_trainer import BaseTrainer": "from paceline.train import BaseTrainer",
    "from ray.train.callbacks.logging import JsonLoggerCallback": (
        "from paceline.train.callbacks import JsonLoggerCallback"
    ),
    "from ray.tune.experiment import trial": "from paceline.tune import experiment as trial",
}  # fmt: skip


@pytest.fixture
def migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def migrate(source: str, *options: str) -> tuple[str, int]:
        Path("a.py").write_text(source)
        code = main(["migrate", "a.py", *options])
        return Path("a.py").read_text(), code

    return migrate


@pytest.mark.parametrize("before", CASES)
def test_imports_change_and_nothing_else_does(before, migrate):
    assert migrate(before) == (CASES[before], 0)
    assert migrate(CASES[before]) == (CASES[before], 0), "a second time changes nothing"


def test_local_replaces_what_starts_a_cluster(migrate):
    assert migrate("import ray\nray.init()", "--local")[0] == "import paceline\npaceline.init()"
    assert migrate("from ray import init, put", "--local")[0] == "from paceline import init\nfrom ray import put"


def test_bytes_mode_encoding_and_links_stay(tmp_path, migrate):
    content = "# -*- coding: latin-1 -*-\r\nfrom ray import tune  # \xe9\r\nx = '''a\r\n'''\r\n".encode("latin-1")
    (tmp_path / "real.py").write_bytes(content)
    (tmp_path / "real.py").chmod(0o751)
    (tmp_path / "link.py").symlink_to("real.py")
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfimport ray.tune\n")
    assert main(["migrate", "link.py", "bom.py"]) == 0
    assert (tmp_path / "real.py").read_bytes() == content.replace(b"from ray", b"from paceline")
    assert stat.S_IMODE((tmp_path / "real.py").stat().st_mode) == 0o751
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "bom.py").read_bytes() == b"\xef\xbb\xbfimport paceline.tune\n"
    assert sorted(os.listdir(tmp_path)) == ["bom.py", "link.py", "real.py"]


def test_a_file_that_cannot_be_parsed_is_named_and_the_others_go_on(tmp_path, migrate, capsys):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for name in ("broken.py", ".hidden/x.py", "env/x.py"):
        (tmp_path / name).write_text("import ray.tune\n(")
    (tmp_path / "bytes.py").write_bytes(b"import ray\n\xff")
    (tmp_path / "old.ipynb").write_text('["ray"]')
    (tmp_path / "z.py").write_text("import ray.tune\n")
    assert main(["migrate", ".", "nowhere.py"]) == 2
    assert (tmp_path / "z.py").read_text() == "import paceline.tune\n"
    assert (tmp_path / "broken.py").read_text() == "import ray.tune\n("
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in errors] == ["broken.py", "bytes.py", "old.ipynb", "nowhere.py"]


def test_check_and_diff_write_nothing(migrate, capsys):
    assert migrate("import ray.tune\n", "--check") == ("import ray.tune\n", 1)
    assert migrate("import ray.tune\n", "--diff") == ("import ray.tune\n", 0)
    assert "-import ray.tune\n+import paceline.tune\n" in capsys.readouterr().out
    assert migrate("from paceline import tune\n", "--check")[1] == 0
    assert migrate("import ray\nray.get(1)\n", "--check")[1] == 0, "what stays with Ray is fine"
    assert migrate("from paceline.train import Horovod\n", "--check")[1] == 1, "still missing"


def test_what_differs_is_listed_with_the_notes_that_errors_quote(migrate, capsys):
    from paceline._core.ray_names import explain_name

    source = """\
import ray
from ray.train import ScalingConfig as S, report
from ray.train.horovod import HorovodTrainer
import ray.train.torch as t
ray.init()
t.TorchTrainer(f, scaling_config=S(placement=1), nothing=1)
t.TorchTrainer.nothing, t.TorchTrainer(f).any, t.prepare_model(f)(any=1)
report({}, **more)
os.environ["RAY_TRAIN_V2_ENABLED"]
ray.data.read_csv("x", 1, 2)
from ray.train._internal.session import get_session
"""
    assert migrate(source, "--json", "--diff")[1] == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    found = {(each["line"], each["kind"], each["name"]): each for each in file["differences"]}
    note = found[6, "missing", "ray.train.ScalingConfig(placement=)"]
    assert "placement_strategy" in note["text"]
    assert note["page"] == "docs/guides/ray-names.md#ray-train"
    horovod = found[3, "missing", "ray.train.horovod.HorovodTrainer"]["text"]
    assert horovod == explain_name("paceline.train.horovod", "HorovodTrainer")
    assert "it has train_loop_per_worker" in found[6, "missing", "ray.train.torch.TorchTrainer(nothing=)"]["text"]
    assert {(2, "differs", "ray.train.report"), (5, "left", "ray.init"), (9, "differs", "RAY_TRAIN_V2_ENABLED")} <= {
        *found
    }
    assert [name for line, kind, name in found if (line, kind) == (7, "missing")] == [
        "ray.train.torch.TorchTrainer.nothing"
    ]
    assert "private to Ray" in found[11, "missing", "ray.train._internal"]["text"]
    assert "2 by position" not in found[10, "missing", "ray.data.read_csv()"]["text"]


def test_what_only_adds_or_does_not_concern_the_script_is_not_listed(migrate, capsys):
    source = """\
from ray import train, tune
train.ScalingConfig(num_workers=2), train.get_checkpoint, train.Checkpoint, tune.TuneConfig(metric="a", mode="min")
class Model(tune.Trainable):
    def step(self): ...
"""
    assert migrate(source, "--check", "--json")[1] == 1
    assert json.loads(capsys.readouterr().out)["files"][0]["differences"] == []
    migrate(source + "    def reset_config(self): ...\ntrain.ScalingConfig(trainer_resources={})\n", "--json")
    found = json.loads(capsys.readouterr().out)["files"][0]["differences"]
    assert [(each["line"], each["name"], each["text"].split(":")[0]) for each in found] == [
        (3, "ray.tune.Trainable", "A search never calls `reset_config`"),
        (6, "ray.train.ScalingConfig(trainer_resources=)", "`trainer_resources` has no effect"),
    ]


@pytest.mark.parametrize("module", sorted({*MODULES.values()}))
def test_a_module_that_imports_are_changed_to_exists(module):
    assert importlib.util.find_spec(module) is not None


def test_a_notebook_is_migrated_across_its_cells(tmp_path, migrate):
    cells = [
        {"cell_type": "markdown", "source": ["import ray.train"]},
        {"cell_type": "code", "source": ["%pip install ray\n", "import ray"], "outputs": [], "metadata": {}},
        {"cell_type": "code", "source": "%%bash\npython -c 'import ray.train'"},
        {"cell_type": "code", "source": "ray.train.report({'é': 1})"},
    ]
    text = json.dumps({"cells": cells, "nbformat": 4}, indent=1, ensure_ascii=False) + "\n"
    (tmp_path / "n.ipynb").write_text(text)
    assert main(["migrate", "n.ipynb"]) == 0
    expected = text.replace('import ray"\n', 'import paceline"\n').replace(
        '"ray.train.report', '"paceline.train.report'
    )
    assert (tmp_path / "n.ipynb").read_text() == expected


def test_no_framework_is_imported_and_no_process_started(tmp_path):
    source = (
        "from ray.train.torch import TorchTrainer\nfrom ray.train.lightning import RayDDPStrategy\nTorchTrainer(x=1)\n"
    )
    (tmp_path / "a.py").write_text(source)
    code = (
        "import sys, psutil\nfrom paceline.cli import main\nmain(['migrate', 'a.py'])\n"
        "print({'torch', 'lightning', 'ray', 'tensorflow'} & {*sys.modules}, psutil.Process().children())"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines()[-1] == "set() []", ended.stderr
    assert "TorchTrainer(x=)" in ended.stdout
