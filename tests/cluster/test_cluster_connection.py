"""How a script finds its cluster, and the messages about it."""

import os

import pytest

import paceline
from paceline._core import engine_choice
from paceline._core.engine_choice import EngineChoice
from paceline.train import DataParallelTrainer, RunConfig

SCRIPT = """
import sys
from paceline.train import DataParallelTrainer, RunConfig

if "--init" in sys.argv:
    import paceline
    paceline.init(engine="ray", address=sys.argv[2])

def function():
    import os
    return os.environ.get("RAY_ADDRESS")

config = RunConfig(name="a", storage_path=sys.argv[1], engine="ray" if "--config" in sys.argv else None)
print("at", DataParallelTrainer(function, run_config=config).fit().return_value)
"""

SCRIPT_WITH_ROWS = """
import sys
import paceline.data
from paceline.train import DataParallelTrainer, RunConfig, get_dataset_shard

def function():
    import ray
    assert ray.get(ray.put(1)) == 1
    return sum(row["id"] for row in get_dataset_shard("rows").iter_rows())

rows = paceline.data.range(30, override_num_blocks=3).map(lambda row: row)
config = RunConfig(name="rows", storage_path=sys.argv[1])
trainer = DataParallelTrainer(function, run_config=config, datasets={"rows": rows})
print("rows", trainer.fit().return_value)
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        ([], {"RAY_ADDRESS": "{address}"}, "RAY_ADDRESS={address}"),
        pytest.param(["--init"], {}, "set by paceline.init()", marks=pytest.mark.slow),
        pytest.param(
            ["--config"],
            {"RAY_ADDRESS": "{address}", "PACELINE_ENGINE": "local"},
            "set by RunConfig(engine='ray')",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_script_says_in_one_line_where_it_runs_and_why(cluster, run_script, tmp_path, arguments, environment, reason):
    env = {name: value.format(address=cluster.address) for name, value in environment.items()}
    ended = run_script(SCRIPT, str(tmp_path), cluster.address, *arguments, env=env)
    first, *_ = [line for line in ended.stderr.splitlines() if line.startswith("paceline: ")]
    expected = f"1 worker on the Ray cluster at {cluster.address} ({reason.format(address=cluster.address)})"
    assert expected in first, ended.stderr
    assert f"at {cluster.address}" in ended.stdout
    assert ended.stderr.count("requires no token") == (not cluster.address.startswith("127.")), ended.stderr


TOKEN = "3" * 64


@pytest.mark.slow
def test_a_cluster_with_a_token_takes_those_who_have_it_and_tells_others_what_is_missing(
    make_cluster, run_script, tmp_path
):
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    guarded = make_cluster(**token)
    address = {"RAY_ADDRESS": guarded.address, "HOME": str(tmp_path)}
    ended = run_script(SCRIPT_WITH_ROWS, str(tmp_path), env={**address, **token})
    assert "rows 435" in ended.stdout, ended.stderr
    assert "requires no token" not in ended.stderr
    for wrong, problem in [
        ({"RAY_AUTH_MODE": ""}, "asks for a token, and RAY_AUTH_MODE is not 'token'"),
        ({"RAY_AUTH_MODE": "token"}, f"asks for a token, and {tmp_path}/.ray/auth_token has none"),
        ({**token, "RAY_AUTH_TOKEN": "4" * 200}, "refuses the token in RAY_AUTH_TOKEN"),
    ]:
        ended = run_script(SCRIPT_WITH_ROWS, str(tmp_path), env={**address, **wrong})
        assert f"PermissionError: the Ray cluster at {guarded.address} {problem}" in ended.stderr
        assert "hint: " in ended.stderr


def test_ray_that_is_initialised_is_used_unless_the_script_wants_this_machine(tmp_path, capsys):
    result = DataParallelTrainer(lambda: 1, run_config=RunConfig(name="a", storage_path=tmp_path)).fit()
    assert result.return_value == 1
    assert "(Ray is initialised in this process)" in capsys.readouterr().err
    DataParallelTrainer(lambda: 1, run_config=RunConfig(name="b", storage_path=tmp_path, engine="local")).fit()
    assert "on this machine" in capsys.readouterr().err
    config = RunConfig(name="c", storage_path=tmp_path)
    trainer = DataParallelTrainer(lambda: os.getpid(), scaling_config={"num_workers": 0}, run_config=config)
    assert trainer.fit().return_value == os.getpid(), "zero workers stay in this process"
    assert "Ray" not in capsys.readouterr().err


def test_another_cluster_than_the_one_in_use_is_refused(monkeypatch, cluster):
    monkeypatch.setattr(engine_choice, "_init", EngineChoice(engine=""))
    with pytest.raises(ValueError, match=f"already connected to another cluster, {cluster.address}"):
        paceline.init(engine="ray", address="192.0.2.77:6379")
    with pytest.raises(ValueError, match="must not be a Ray Client address"):
        paceline.init(engine="ray", address="ray://192.0.2.77:10001")
    paceline.init(engine="ray", address=cluster.address)
    assert engine_choice.choose_engine().engine == "ray"


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_reported_at_once(run_script, tmp_path):
    ended = run_script(SCRIPT, str(tmp_path), "127.0.0.1:1", "--init")
    assert ended.returncode == 1
    assert "cannot reach a Ray cluster at '127.0.0.1:1'" in ended.stderr
    assert "hint: " in ended.stderr
