"""A name that is taken: what counts as another run, and what may be done about one."""

import functools

import pytest

from paceline import train, tune
from paceline._commands import run
from paceline.train import Checkpoint, Result, RunExistsError
from paceline.train.driver.code_fingerprint import find_changed_parts, fingerprint_code

HELPER = "def helper(x):\n    return x + 1\n\n"
FUNCTION = (
    "def function(config):\n    if config: pass\n    for i in range(3):\n        print(helper(i), i in {'a', 'b'})\n"
)
CLOSED = "def make(lr, log):\n    return lambda config, k={k}: log.append(lr)\nfunction = make({lr}, {log})\n"
CLASS = "class Model:\n    width = {width}\n    def step(self):\n        return {result}\n"
OF_CLASS = CLASS + "def function(config):\n    class Inner(Model): pass\n    return Inner().step()\n"
BOUND = CLASS + "    def __init__(self, lr):\n        self.lr, self.seen = lr, object()\nfunction = Model({lr}).step\n"
PARTIAL = "import functools\ndef inner(config, *, lr): pass\nfunction = functools.partial(inner, lr={lr})\n"


def fingerprint(source):
    scope = {"__name__": "__main__", "__file__": "script.py"}
    exec(compile(source, "script.py", "exec"), scope)
    return fingerprint_code(scope["function"])


@pytest.mark.parametrize(
    ("was", "now", "changed"),
    [
        (
            HELPER + FUNCTION,
            f"\n# moved\nstart = 3\n{HELPER}\n{FUNCTION}".replace("config: pass", "config:\n        pass"),
            [],
        ),
        (HELPER + FUNCTION, HELPER + FUNCTION.replace("i ", "k ").replace("(i)", "(k)"), []),
        (FUNCTION, FUNCTION.replace("\n", "\n    '''Says what it does.'''\n", 1), []),
        (HELPER + FUNCTION, HELPER.replace("1", "2") + FUNCTION, ["helper"]),
        (HELPER + FUNCTION, HELPER + FUNCTION.replace("3", "4"), [""]),
        (HELPER + FUNCTION, HELPER + FUNCTION.replace("'b'", "'c'"), [""]),
        ("function = lambda config: 1", "other = lambda: 2; function = (\n  lambda config: 1)", []),
        ("function = lambda config: 1", "function = lambda config: 1.0", [""]),
        (CLOSED.format(lr=0.1, k=1, log=[]), CLOSED.format(lr=0.1, k=1, log=["so far"]), []),
        (CLOSED.format(lr="'/tmp/a'", k=1, log=[]), CLOSED.format(lr="'/tmp/b'", k=1, log="object()"), []),
        (CLOSED.format(lr=0.1, k=1, log=[]), CLOSED.format(lr=0.2, k=1, log=[]), ["the value of lr"]),
        (CLOSED.format(lr=0.1, k=1, log=[]), CLOSED.format(lr=0.1, k=2, log=[]), ["the value of k"]),
        (OF_CLASS.format(width=1, result=2), "\n\n" + OF_CLASS.format(width=1, result=2), []),
        (OF_CLASS.format(width=1, result=2), OF_CLASS.format(width=1, result=3), ["Model.step"]),
        (OF_CLASS.format(width=1, result=2), OF_CLASS.format(width=2, result=2), ["the value of width in Model"]),
        (BOUND.format(width=1, result=2, lr=1), BOUND.format(width=1, result=2, lr=1), []),
        (BOUND.format(width=1, result=2, lr=1), BOUND.format(width=1, result=2, lr=2), ["the value of lr"]),
        (PARTIAL.format(lr=1), PARTIAL.format(lr=2), ["the value of lr"]),
        ("function = print", "function = len", []),
    ],
)
def test_what_changes_a_function_and_what_does_not(was, now, changed):
    assert find_changed_parts(fingerprint(was), fingerprint(now)) == changed


def test_what_another_interpreter_compiled_cannot_be_judged():
    was, now = fingerprint("function = lambda config: 1"), fingerprint("function = lambda config: 2")
    assert find_changed_parts({**was, "python": "cpython-399"}, now) == []
    assert find_changed_parts(None, now) == find_changed_parts({"python": now["python"]}, now) == []


def count(config, *, to=2):
    last = train.get_checkpoint()
    for n in range(last.to_dict()["n"] + 1 if last else 1, to + 1):
        train.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))


def test_a_run_of_other_code_is_refused_and_may_be_begun_beside_it_or_continued_from_it(fit, tmp_path, capfd):
    first = fit(count, 1, config={})
    assert fit(count, 1, config={}).status == "finished", "the same again"
    longer = functools.partial(count, to=4)
    with pytest.raises(RunExistsError, match="the code changed since the last run: the value of to"):
        fit(longer, 1, config={})
    with pytest.raises(RunExistsError, match="if_exists='fail'"):
        fit(count, 1, config={}, if_exists="fail")
    assert fit(longer, 1, config={}, if_exists="resume").metrics == {"n": 2}
    assert "the code changed since the last run" in capfd.readouterr().err
    second = fit(longer, 1, config={}, if_exists="new")
    third = fit(longer, 1, config={}, if_exists="new", fork_from=first)
    assert [result.path for result in (second, third)] == [f"{tmp_path}/run-2", f"{tmp_path}/run-3"]
    assert [each.metrics_dataframe["n"].tolist() for each in (first, second, third)] == [[1, 2], [1, 2, 3, 4], [3, 4]]
    with pytest.raises(ValueError, match=r"fork_from.* and resume_from_checkpoint"):
        fit(longer, 1, config={}, name="x", fork_from=first.path, resume_from_checkpoint=first.checkpoint)
    fourth = fit(longer, 1, config={}, name="fourth", fork_from=second.best_checkpoints[0][0])
    assert Result.from_path(fourth.path).metrics_dataframe["n"].tolist() == [2, 3, 4]


def fail_until_mended(config):
    train.report({"n": 1}, checkpoint=Checkpoint.from_dict({"n": 1}))
    raise ValueError("a bug")


def test_an_unfinished_run_continues_with_mended_code_and_says_so(fit, capfd):
    with pytest.raises(train.WorkerGroupError) as failed:
        fit(fail_until_mended, 1, config={})
    assert failed.value.result.status == "failed"
    assert fit(count, 1, config={}).metrics == {"n": 2}
    said = [line for line in capfd.readouterr().err.splitlines() if "the code changed since the last run" in line]
    assert said == [
        f"paceline: the code changed since the last run: {__name__}.fail_until_mended, now {__name__}.count"
    ]


def test_a_script_that_changed_is_another_run(tmp_path, capfd):
    script = tmp_path / "script.py"
    line = ["--name", "run", "--storage-path", str(tmp_path), str(script)]
    for source, more, code in (
        ("print(1)", [], 0),
        ("print( 1 )  # same", [], 0),
        ("print(1)", ["-x"], 2),
        ("2", [], 2),
    ):
        script.write_text(source)
        assert run.main([*line, *more]) == code, capfd.readouterr().err
    assert run.main(["--if-exists", "new", *line]) == 0
    assert (tmp_path / "run-2").is_dir()


def search(path, function, **options):
    config = tune.TuneConfig(**{"metric": "n", "mode": "max", "num_samples": 2, **options.pop("tune_config", {})})
    space = options.pop("space", {"x": tune.grid_search([1])})
    place = tune.RunConfig(name="search", storage_path=path, **options)
    return tune.Tuner(function, param_space=space, tune_config=config, run_config=place).fit()


def test_a_search_of_other_code_or_configuration_is_refused(tmp_path, capfd):
    def first(config):
        tune.report({"n": 1})

    def second(config):
        tune.report({"n": 2})

    search(tmp_path, first)
    grid = search(tmp_path, first)
    assert ([result.metrics["n"] for result in grid], grid.status) == ([1, 1], "finished")
    known = [result.trial_id for result in grid]
    for function, changes, text in (
        (second, {}, "the code changed since the last run: first, now second"),
        (second, {"tune_config": {"num_samples": 3}}, "the code changed since the last run: first, now second"),
        (first, {"tune_config": {"mode": "min"}}, r"TuneConfig\(mode\) .* was 'max' and is 'min'"),
        (first, {"tune_config": {"num_samples": 1}}, r"TuneConfig\(num_samples\) was 2 and is 1"),
        (first, {"space": {"x": tune.grid_search([1, 2])}}, r"param_space\['x'\]"),
    ):
        with pytest.raises(RunExistsError, match=text):
            search(tmp_path, function, verbose=0, **changes)
    capfd.readouterr()
    assert search(tmp_path, second, if_exists="resume")[0].metrics["n"] == 1
    assert "first, now second" in capfd.readouterr().err
    with pytest.raises(RunExistsError, match="if_exists='fail'"):
        search(tmp_path, first, if_exists="fail")
    grid = search(tmp_path, second, if_exists="new")
    assert (grid[0].metrics["n"], grid.experiment_path) == (2, str(tmp_path / "search-2"))
    more = search(tmp_path, first, tune_config={"num_samples": 3})
    assert len(more) == 3, "more of the same is no other search"
    ids = [result.trial_id for result in more]
    assert ids[:2] == known
    assert not {*ids} & {result.trial_id for result in grid}, "no other search has these trials"
    with pytest.raises(ValueError, match="fork_from"):
        search(tmp_path, first, fork_from=tmp_path)
