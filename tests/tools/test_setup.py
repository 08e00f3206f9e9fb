"""setup/install and setup/build against a machine played by small stand-ins for dpkg, apt and pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A copy of the set-up scripts in a folder, and a PATH on which the commands that change a
    machine only write down how they were called."""

    def __init__(self, folder):
        self.root = folder / "a clone"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.calls.write_text("")
        self.bin.mkdir()
        (self.root / "setup").mkdir(parents=True)
        for name in ("install", "build", "test_python"):
            shutil.copy(ROOT / "setup" / name, self.root / "setup" / name)
        self.write("setup/packages.txt", "# tools\nninja  # builds\nlibfmt-dev\n")
        self.write("setup/wheels.txt", "torch==1.0\n")
        self.command("dpkg-query", 'for name; do :; done; cat "$0.installed"')
        self.packages("ninja installed", "libfmt-dev installed")
        self.user(0)
        self.command("apt-get", f'echo "apt-get $*" >> "{self.calls}"')
        self.pip('mkdir -p "$target/torch"')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def command(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def packages(self, *lines):
        (self.bin / "dpkg-query.installed").write_text("\n".join(lines) + "\n")

    def user(self, number):
        self.command("id", f"echo {number}")

    def pip(self, body):
        find_target = 'while [ "$1" != --target ]; do shift; done; target=$2'
        self.command("python", f'echo "python $*" >> "{self.calls}"\n{find_target}\n{body}')

    def run(self, *command):
        environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "FULLSHARD_PYTHON": str(self.bin / "python"),
            "HOME": os.environ.get("HOME", "/"),
        }
        result = subprocess.run(
            command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.stdout == ""  # standard output belongs to the program
        return result

    def install(self):
        return self.run(str(self.root / "setup" / "install"))

    def build(self, what):
        return self.run(str(self.root / "setup" / "build"), what)

    def called(self):
        lines = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_everything_is_brought_in_once(machine):
    machine.packages("ninja installed", "libfmt-dev config-files")
    assert machine.install().returncode == 0
    update, install, pip = machine.called()
    assert update == "apt-get update"
    assert install.startswith("apt-get install -y") and install.endswith(" libfmt-dev")
    assert "--no-deps" in pip
    assert (machine.root / ".deps" / "torch").is_dir()
    machine.packages("ninja installed", "libfmt-dev installed")
    assert machine.install().returncode == 0
    assert machine.called() == []


def test_without_root_the_one_command_is_printed(machine):
    machine.user(1000)
    machine.packages("ninja installed")
    result = machine.install()
    assert result.returncode == 1
    assert machine.called() == []
    commands = [line for line in result.stderr.splitlines() if "apt-get" in line]
    assert len(commands) == 1
    assert "sudo" in commands[0] and commands[0].rstrip("'").endswith(" libfmt-dev")


def test_interrupted_wheels_are_fetched_again(machine):
    machine.pip('mkdir -p "$target/half"; kill -9 $PPID; exit 1')
    assert machine.install().returncode != 0
    assert not (machine.root / ".deps").exists()
    machine.called()
    machine.pip('mkdir -p "$target/torch"')
    assert machine.install().returncode == 0
    assert len(machine.called()) == 1
    assert sorted(path.name for path in (machine.root / ".deps").iterdir()) == ["pins.txt", "torch"]
    assert not list(machine.root.glob(".deps.*"))


def test_failed_refresh_leaves_the_old_wheels(machine):
    machine.install()
    machine.write("setup/wheels.txt", "torch==2.0\n")
    machine.pip("exit 1")
    assert machine.install().returncode == 1
    assert (machine.root / ".deps" / "pins.txt").read_text() == "torch==1.0\n"
    machine.pip('mkdir -p "$target/torch2"')
    assert machine.install().returncode == 0
    assert (machine.root / ".deps" / "torch2").is_dir()
    assert not (machine.root / ".deps" / "torch").exists()


def test_a_machine_without_dpkg_is_told_what_to_do(machine):
    machine.bin.joinpath("dpkg-query").unlink()
    for name in ("dirname", "cmp", "flock", "rm", "mv", "cp", "sed"):
        machine.command(name, f'exec /usr/bin/{name} "$@"')
    result = subprocess.run(
        ["/bin/sh", str(machine.root / "setup" / "install")],
        env={"PATH": str(machine.bin)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "Debian 12" in result.stderr and "setup/packages.txt" in result.stderr


@pytest.fixture
def with_venv(machine):
    """A machine on which an environment's pip writes down how it was called."""
    machine.write("setup/test-python.txt", "torch==1.0\n")
    pip = machine.bin / "environments-python"
    machine.command("environments-python", f'echo "pip $*" >> "{machine.calls}"')
    machine.command("python", f'echo "python $*" >> "{machine.calls}"\n'
                              f'mkdir -p "$3/bin" && cp "{pip}" "$3/bin/python"')  # fmt: skip
    return machine


def make_environment(machine):
    return machine.run(str(machine.root / "setup" / "test_python"))


def test_the_tests_environment_is_made_once(with_venv):
    assert make_environment(with_venv).returncode == 0
    venv, pip = with_venv.called()
    place = with_venv.root / ".deps" / "test-python"
    assert venv == f"python -m venv {place}"
    assert pip.endswith(f"--requirement {with_venv.root}/setup/test-python.txt")
    assert make_environment(with_venv).returncode == 0
    assert with_venv.called() == []
    with_venv.write("setup/test-python.txt", "torch==2.0\n")
    assert make_environment(with_venv).returncode == 0
    assert len(with_venv.called()) == 2


def test_a_failed_environment_is_made_again(with_venv):
    with_venv.command("environments-python", "exit 1")
    assert make_environment(with_venv).returncode != 0
    with_venv.called()
    with_venv.command("environments-python", "exit 0")
    assert make_environment(with_venv).returncode == 0
    assert len(with_venv.called()) == 1


def test_the_environment_lies_behind_a_shared_link(with_venv):
    shared = with_venv.root.parent / "shared"
    shared.mkdir()
    (with_venv.root / ".deps").symlink_to(shared)
    assert make_environment(with_venv).returncode == 0
    assert with_venv.called()[0] == f"python -m venv {shared / 'test-python'}"
    assert make_environment(with_venv).returncode == 0
    assert with_venv.called() == []


@pytest.fixture
def source_tree(machine):
    for name in ("src/a.cpp", "src/b.cpp", "include/a.h", "cmake/x.cmake", "tests/a_test.cpp", "examples/a.cpp"):
        machine.write(name, "")
    for name in ("CMakeLists.txt", "CMakePresets.json"):
        machine.write(name, "")
    make = 'case "$1" in --preset) touch build/release/build.ninja ;; esac'
    machine.command("cmake", f'echo "cmake $*" >> "{machine.calls}"\n{make}')
    return machine


def test_build_runs_only_when_an_input_changed(source_tree):
    assert source_tree.build("app").returncode == 0
    configure, build = source_tree.called()
    assert configure == "cmake --preset release"
    assert build.endswith("--target fullshard fullshard_engine")
    source_tree.build("app")
    assert source_tree.called() == []
    for change in ("src/a.cpp", "include/new.h", "CMakeLists.txt"):
        source_tree.write(change, "int x;\n")
        source_tree.build("app")
        assert len(source_tree.called()) == 1, change
    (source_tree.root / "src" / "b.cpp").unlink()
    source_tree.build("app")
    assert len(source_tree.called()) == 1


def test_tests_are_an_input_of_all_only(source_tree):
    source_tree.build("app")
    source_tree.build("all")
    source_tree.called()
    source_tree.write("tests/a_test.cpp", "int x;\n")
    source_tree.build("app")
    assert source_tree.called() == []
    source_tree.build("all")
    assert len(source_tree.called()) == 1


def test_a_failed_build_is_tried_again(source_tree):
    working = (source_tree.bin / "cmake").read_text()
    source_tree.command("cmake", "exit 1")
    assert source_tree.build("app").returncode == 1
    (source_tree.bin / "cmake").write_text(working)
    assert source_tree.build("app").returncode == 0
    assert len(source_tree.called()) == 2


def test_build_refuses_unknown_words(source_tree):
    result = source_tree.build("everything")
    assert result.returncode == 2
    assert "usage" in result.stderr
