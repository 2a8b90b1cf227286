"""Ray inside a worker's process: what is told from a job, and what its process does, as far as no cluster is needed."""

import pickle
import pickletools
import subprocess
import sys

import cloudpickle
import pytest

from paceline._engine.ray.guest import mentions_ray, with_prelude

ray = pytest.importorskip("ray")


def _uses_ray():
    return ray.get(1)


def _imports_ray():
    import ray

    return ray


@ray.remote
def task():
    return 1


def _by_value(thing):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        return cloudpickle.dumps((thing, None, None))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    ("thing", "mentioned"),
    [
        (_uses_ray, True),
        (lambda: ray.nodes(), True),
        ([ray.ObjectRef.nil()], True),
        ({"task": task}, True),
        ([ray.exceptions.RayError], True),
        ([ray, ray.data], True),
        (_imports_ray, False),
        ("ray", False),
        (["ray", "ray.util", "ObjectRef"], False),
        ({"text": "import ray; ray.init()", "ray": "ray.get"}, False),
        (lambda: "ray.get", False),
        ([1.5] * 100, False),
    ],
)
def test_a_job_leads_to_ray_by_what_it_names_not_by_what_it_says(thing, mentioned: bool) -> None:
    job = _by_value(thing)
    assert mentions_ray(job) == mentioned
    assert mentions_ray(pickletools.optimize(job)) == mentioned


def test_older_pickles_are_understood() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert mentions_ray(pickle.dumps(ray.exceptions.RayError, protocol))
        assert not mentions_ray(pickle.dumps({"ray": ["ray", "ray.get"]}, protocol))


PROGRAM = """
import pickle, sys
job = pickle.loads(sys.stdin.buffer.read())
shared = job[1]
assert job == (["x" * 300, 2], shared, {"a": shared}), job
assert job[2]["a"] is shared
assert "ray" not in sys.modules
import ray.util
print(hasattr(ray.init, "__wrapped__"))
"""


def test_a_job_with_a_prelude_is_the_same_job_and_ray_comes_prepared() -> None:
    shared = ("twice",)
    job = pickle.dumps((["x" * 300, 2], shared, {"a": shared}))
    told = with_prelude(job, "10.0.0.1:6379", "space")
    ended = subprocess.run([sys.executable, "-c", PROGRAM], input=told, capture_output=True)
    assert (ended.returncode, ended.stdout) == (0, b"True\n"), ended.stderr.decode()
