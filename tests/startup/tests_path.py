"""The tests' own modules are found from here on: imported first by the process that others are forked from."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "lm")]
