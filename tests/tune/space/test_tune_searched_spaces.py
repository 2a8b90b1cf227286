"""Spaces in searches that really run, end, and are continued."""

from drawn_spaces import Color, Model, activation
from tuners import make_tuner

from paceline import tune
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter


def train_func(config):
    tune.report({"loss": config["x"], "is": repr(config.get("object"))})


def test_objects_reach_the_trials_and_come_back_when_the_search_is_continued(tmp_path):
    space = {
        "x": tune.grid_search([1, 2, 3]),
        "object": tune.choice([Color.RED, Color.BLUE, activation, Model]),
        "pair": (tune.uniform(0, 1), float("nan")),
        "made": tune.sample_from(lambda spec: {"of": spec.config.object}),
    }

    def search():
        limited = ConcurrencyLimiter(BasicVariantGenerator(), 2)
        return make_tuner(tmp_path, train_func, space, search_alg=limited, seed=3).fit()

    results = search()
    configs = [result.config for result in results]
    assert [config["x"] for config in configs] == [1, 2, 3]
    assert len({config["pair"][0] for config in configs}) == 3
    for result in results:
        kind = result.config["object"]
        assert kind in (Color.RED, Color.BLUE, activation, Model)
        assert result.config["made"] == {"of": kind}
        assert type(result.config["pair"]) is tuple
        assert result.metrics["is"].partition(" at 0x")[0] == repr(kind).partition(" at 0x")[0]
    again = search()
    assert repr([result.config for result in again]) == repr(configs)
    assert [*again[0].metrics_dataframe["config/object"]] == [configs[0]["object"]]
    read = tune.ResultGrid.from_path(tmp_path / "search")
    names = [f"<drawn_spaces.{name}>" for name in ("Color.RED", "Color.BLUE", "activation", "Model")]
    assert {repr(result.config["object"]) for result in read} <= {*names}, "without the space they are named"
    assert read.get_best_result("loss", "max").metrics["config"]["pair"][0] == configs[2]["pair"][0]
