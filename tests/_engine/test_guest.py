"""Ray inside a worker's process: what is told from a job, and what its process does, as far as no cluster is needed."""

import pickle
import pickletools
import subprocess
import sys

import cloudpickle
import pytest

from paceline._engine.ray.ray_in_worker import has_ray_references

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
        (_imports_ray, False),
        (["ray", "ray.util", "ObjectRef"], False),
        ({"text": "import ray; ray.init()", "ray": "ray.get"}, False),
        (lambda: "ray.get", False),
    ],
)
def test_a_job_leads_to_ray_by_what_it_names_not_by_what_it_says(thing, mentioned: bool) -> None:
    job = _by_value(thing)
    assert has_ray_references(job) == mentioned
    assert has_ray_references(pickletools.optimize(job)) == mentioned


def test_older_pickles_are_understood() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert has_ray_references(pickle.dumps(ray.exceptions.RayError, protocol))
        assert not has_ray_references(pickle.dumps({"ray": ["ray", "ray.get"]}, protocol))


PROGRAM = """
import sys
from paceline._engine.messages import RayConnectionSpec
from paceline._engine.ray.ray_in_worker import prepare_ray_connection
prepare_ray_connection(RayConnectionSpec("10.0.0.1:6379", "space"))
assert "ray" not in sys.modules
import ray.util
print(hasattr(ray.init, "__wrapped__"))
"""


def test_ray_comes_prepared_when_it_comes() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
    assert (ended.returncode, ended.stdout) == (0, b"True\n"), ended.stderr.decode()
