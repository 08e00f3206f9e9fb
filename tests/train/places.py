"""Where the tests of real training runs find things."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FULLSHARD_BUILD_DIR", ROOT / "build" / "release"))
