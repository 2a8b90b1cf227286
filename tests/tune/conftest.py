"""What tests of searches have in common."""

import pytest


@pytest.fixture(autouse=True)
def one_thread_for_gaussian_processes(request):
    """Optuna's and Ax's are torch's, whose threads get into each other's way on a busy machine."""
    if "[gp" not in request.node.name and "[ax" not in request.node.name:
        yield
        return
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
