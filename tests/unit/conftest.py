"""Property tests without a clock: a busy machine is no bug."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
