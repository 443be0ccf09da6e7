"""Property tests have no deadline, and on a build machine no luck."""

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("build", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("build" if os.environ.get("CI") else "here")
