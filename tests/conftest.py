"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("project", deadline=None)  # a loaded machine is no failure
settings.load_profile("project")
