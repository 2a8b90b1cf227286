import copy

import pytest

from paceline.data.context import DataContext
from paceline.data.exec.service import DataService


@pytest.fixture
def make_service():
    """Makes services with a context of their own, and closes them."""
    made = []

    def make(budget=None, cpu=2, **changes):
        context = copy.deepcopy(DataContext())
        context.execution_options.resource_limits.object_store_memory = budget or 256 << 20
        context.execution_options.resource_limits.cpu = cpu
        for name, value in changes.items():
            setattr(context, name, value)
        made.append(DataService(context))
        return made[-1]

    yield make
    for service in made:
        service.close()


@pytest.fixture
def service(make_service):
    return make_service()
