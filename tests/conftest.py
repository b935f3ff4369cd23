"""Puts this folder first on the path, so that every test can ``from fixtures.make import ...``.

(``tests`` itself cannot be imported by name: packages from the registry install one of their own.)
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

settings.register_profile("steady", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("steady")
