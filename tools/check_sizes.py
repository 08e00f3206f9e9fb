#!/usr/bin/env python3
"""Holds sources to the project's size caps and prints the medians that are the real aim.

Caps: 500 lines a source, 250 a header, 60 a function (C++ and Python; signature to closing brace).

usage: tools/check_sizes.py [--root FOLDER]
Exit code: 0 clean, 1 violations (one a line on standard output).
"""

import argparse
import ast
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("include", "src", "tests", "tools", "examples", "benchmarks", "cmake")
SOURCE_CAP = 500
HEADER_CAP = 250
FUNCTION_CAP = 60

# What must not be mistaken for code; each match is blanked, its line ends kept.
NOT_CODE = re.compile(
    r"""
      //[^\n]*
    | /\*.*?\*/
    | R"(?P<tag>[^()\s\\]*)\(.*?\)(?P=tag)"
    | "(?:\\.|[^"\\\n])*"
    | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
    | ^[ \t]*\#(?:\\\n|[^\n])*
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
GROUP = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
TEMPLATE = re.compile(r"template\s*<(?:[^<>]|<[^<>]*>)*>")
SCOPE = re.compile(r"\s*(?:inline\s+)?(?:namespace|extern|class|struct|union|enum)\b")
OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|[^\s\w(]+|[\w:]+)")
LONE_COLON = re.compile(r"(?<!:):(?!:)")


@dataclass(frozen=True)
class Function:
    path: str
    line: int
    lines: int
    name: str


def blank_out(text):
    """The text with comments, literals and preprocessor lines replaced by spaces."""

    def blank(match):
        kept = '""' if match[0][0] in "\"R" else ""
        return kept + re.sub(r"[^\n]", " ", match[0])[len(kept):]

    return NOT_CODE.sub(blank, text)


def collapse_groups(head):
    """The head of a block with every (...) emptied to "()" and every [...] to "[]"."""
    placeholders = {"(": "\x01", "[": "\x02"}
    while True:
        shorter = GROUP.sub(lambda group: placeholders[group[0][0]], head)
        if shorter == head:
            return head.replace("\x01", "()").replace("\x02", "[]")
        head = shorter


def block_kind(head):
    """What a brace outside functions opens: "scope", "function" or "value" (an initializer)."""
    flat = collapse_groups(TEMPLATE.sub("", OPERATOR.sub("operator_name", head)))
    flat = re.sub(r"(?:__attribute__|alignas)\s*\(\)", "", flat)
    if SCOPE.match(flat) and "()" not in flat:
        return "scope"
    if "(" in flat.replace("()", "") or "()" not in flat:
        return "value"  # an argument of a call, or no parameters at all
    if "=" in flat:
        return "function" if re.search(r"=\s*\[\]", flat) else "value"
    has_initializers = LONE_COLON.search(flat, flat.index("()"))
    if has_initializers and re.search(r"[\w>]\s*$", flat):
        return "value"  # of one member: `: member_{...}`
    return "function"


def cpp_functions(text, path):
    """Functions of a C++ file, found by its braces; lambdas count with the function around them."""
    code = blank_out(text)
    functions = []
    open_blocks = []
    start = 0  # where the statement that may own the next brace begins
    for position, char in enumerate(code):
        in_scope = all(kind == "scope" for kind in open_blocks)
        if char == "{":
            open_blocks.append(block_kind(code[start:position]) if in_scope else "inner")
            if open_blocks[-1] == "scope":
                start = position + 1
        elif char == "}" and open_blocks:
            kind = open_blocks.pop()
            if kind == "function":
                functions.append(make_function(code, path, start, position))
            if kind in ("function", "scope"):
                start = position + 1
        elif in_scope and (char == ";" or is_access_label(code, start, position)):
            start = position + 1
    return functions


def is_access_label(code, start, position):
    if code[position] != ":":
        return False
    return code[start:position].strip() in ("public", "protected", "private")


def make_function(code, path, start, end):
    head = code[start:end]
    begin = start + len(head) - len(head.lstrip())
    signature = code[begin : code.index("{", begin)]
    named = re.search(r"(operator\s*\S+?|[\w:~]+)\s*\(([^)]*)", signature)
    name = named[1] if named else signature.strip()
    if name.startswith(("TEST", "RC_GTEST")):
        name = f"{name}({' '.join(named[2].split())})"
    line = code.count("\n", 0, begin) + 1
    return Function(path, line, code.count("\n", begin, end) + 1, name)


def python_functions(text, path):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(path, node.lineno, node.end_lineno - node.lineno + 1, node.name)


def files_of(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".py") and path.is_file():
                yield path


def measure(root):
    """(path, number of lines) of every file, and every function."""
    files, functions = [], []
    for path in files_of(root):
        text = path.read_text()
        relative = path.relative_to(root).as_posix()
        files.append((relative, text.count("\n")))
        find = python_functions if path.suffix == ".py" else cpp_functions
        functions.extend(find(text, relative))
    return files, functions


def violations_of(files, functions):
    for path, lines in files:
        cap = HEADER_CAP if path.endswith(".h") else SOURCE_CAP
        if lines > cap:
            yield f"{path}: {lines} lines, the cap is {cap}"
    for function in functions:
        if function.lines > FUNCTION_CAP:
            yield (
                f"{function.path}:{function.line}: {function.name} has {function.lines} lines, "
                f"the cap is {FUNCTION_CAP}"
            )


def print_medians(files, functions):
    def median_of(kind, values):
        if values:
            median = statistics.median(values)
            print(f"sizes: {len(values)} {kind}, median {median:g} lines, largest {max(values)}")

    median_of("sources", [lines for path, lines in files if path.endswith(".cpp")])
    median_of("headers", [lines for path, lines in files if path.endswith(".h")])
    lengths = [function.lines for function in functions if not function.path.endswith(".py")]
    median_of("functions", lengths)
    if lengths:
        short = sum(length < 30 for length in lengths) / len(lengths)
        print(f"sizes: {short:.1%} of the functions are under 30 lines")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    files, functions = measure(root)
    violations = list(violations_of(files, functions))
    for violation in violations:
        print(violation)
    print_medians(files, functions)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
