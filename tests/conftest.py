"""What holds for all tests."""

import gc

from hypothesis import settings

settings.register_profile("project", deadline=None)  # a loaded machine is no failure
settings.load_profile("project")


def pytest_collection_finish():
    gc.freeze()  # the hundreds of thousands of objects that imports have made are not looked through again and again
