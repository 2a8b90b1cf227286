"""Ray inside a worker process, as far as it can be tested without a cluster."""

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
def test_a_job_refers_to_ray_by_imports_not_by_strings(thing, mentioned: bool) -> None:
    job = _by_value(thing)
    assert has_ray_references(job) == mentioned
    assert has_ray_references(pickletools.optimize(job)) == mentioned


def test_understands_older_pickles() -> None:
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


def test_patches_ray_when_it_is_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
    assert (ended.returncode, ended.stdout) == (0, b"True\n"), ended.stderr.decode()
