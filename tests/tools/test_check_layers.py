"""check_layers.py: a small tree with one fault at a time, each found and named."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_layers.py"

TABLE = """
| row | room | holds | may use | torch |
|---|---|---|---|---|
| 3 | comm/init | start | base, comm, store | yes |
| 3 | shard | engine | rows 0-1, comm | yes |
| 2 | comm | groups | base | no |
| 1 | store | keys | base | yes |
| 0 | base | errors | | no |
"""

CLEAN = {
    "docs/layers.md": TABLE,
    "include/fullshard/base/error.h": "#include <string>\n",
    "include/fullshard/comm/group.h": '#include "fullshard/base/error.h"\n',
    "include/fullshard/comm/init.h": '#include "fullshard/comm/group.h"\n',
    "include/fullshard/store/store.h": "#include <torch/torch.h>\n",
    "src/comm/shm/ring.h": '#include "fullshard/comm/group.h"\n',
    "src/comm/shm/ring.cpp": '#include "ring.h"\n#include "comm/shm/ring.h"\n',
    "src/comm/init/init.cpp": '#include "fullshard/comm/init.h"\n#include "fullshard/store/store.h"\n',
    "src/comm/CMakeLists.txt": (
        "fullshard_room(comm SOURCES shm/ring.cpp USES base)\n"
        "fullshard_room(comm_init TORCH SOURCES init/init.cpp USES comm store)\n"
    ),
    "src/shard/unit.cpp": '#include "fullshard/comm/group.h"\n#include "fullshard/store/store.h"\n',
}

FAULTS = {
    "a room the row does not name": (
        {"src/comm/shm/ring.cpp": '#include "fullshard/store/store.h"\n'},
        'src/comm/shm/ring.cpp: includes "fullshard/store/store.h" of room store; comm may use base',
    ),
    "a higher room": (
        {"include/fullshard/base/error.h": '  #  include "comm/shm/ring.h"\n'},
        "include/fullshard/base/error.h: includes \"comm/shm/ring.h\" of room comm; "
        "base may use no other room",
    ),
    "a relative path into another room": (
        {"src/comm/shm/ring.cpp": '#include "../init/secret.h"\n', "src/comm/init/secret.h": ""},
        'src/comm/shm/ring.cpp: includes "../init/secret.h" of room comm/init; comm may use base',
    ),
    "torch in a plain room": (
        {"src/comm/shm/ring.h": "#include <ATen/core/Tensor.h>\n"},
        "src/comm/shm/ring.h: comm is free of torch, but reaches "
        "src/comm/shm/ring.h -> <ATen/core/Tensor.h>",
    ),
    "torch through another header": (
        {"src/comm/shm/ring.h": '#include "deep.h"\n', "src/comm/shm/deep.h": "#include <c10/a.h>\n"},
        "src/comm/shm/ring.cpp: comm is free of torch, but reaches src/comm/shm/ring.cpp "
        "-> src/comm/shm/ring.h -> src/comm/shm/deep.h -> <c10/a.h>",
    ),
    "a header that does not exist": (
        {"src/shard/unit.cpp": '#include "fullshard/comm/gone.h"\n'},
        'src/shard/unit.cpp: includes "fullshard/comm/gone.h", which does not exist',
    ),
    "a folder that is no room": (
        {"src/extra/a.cpp": ""},
        "src/extra/a.cpp: belongs to no room of docs/layers.md",
    ),
    "a table that goes up": (
        {"docs/layers.md": TABLE.replace("| 0 | base | errors | |", "| 0 | base | errors | store |")},
        "docs/layers.md: base (row 0) may use store (row 1); rows must go down",
    ),
    "USES outside the table": (
        {"src/comm/CMakeLists.txt": "fullshard_room(comm SOURCES a.cpp USES base store LINKS z)\n"},
        "src/comm/CMakeLists.txt: comm USES store, which docs/layers.md does not allow",
    ),
    "TORCH against the table": (
        {"src/comm/CMakeLists.txt": "fullshard_room(comm TORCH SOURCES a.cpp)\n"},
        "src/comm/CMakeLists.txt: TORCH of comm differs from the torch column of docs/layers.md",
    ),
}


def lay_out(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run_tool(root, *arguments):
    command = [sys.executable, str(TOOL), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clean_tree_passes(tmp_path):
    lay_out(tmp_path, CLEAN)
    result = run_tool(tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert "5 rooms: clean" in result.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(tmp_path, fault):
    files, expected = FAULTS[fault]
    lay_out(tmp_path, {**CLEAN, **files})
    result = run_tool(tmp_path)
    assert result.returncode == 1
    assert expected in result.stdout.splitlines()


def test_sources_of_plain_rooms_are_listed(tmp_path):
    lay_out(tmp_path, CLEAN)
    assert run_tool(tmp_path, "--list-plain").stdout.split() == ["src/comm/shm/ring.cpp"]


def test_a_broken_table_is_told_apart_from_violations(tmp_path):
    lay_out(tmp_path, {"docs/layers.md": TABLE.replace("base, comm, store", "base, com")})
    result = run_tool(tmp_path)
    assert result.returncode == 2
    assert 'may use "com", which is no room' in result.stderr
