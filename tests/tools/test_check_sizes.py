"""check_sizes.py: what it takes for a function, how long, and that it finds what is too long."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "check_sizes.py"
sys.path.insert(0, str(TOOL.parent))

import check_sizes  # noqa: E402


def found(code):
    return [(f.name, f.line, f.lines) for f in check_sizes.cpp_functions(code, "x.cpp")]


def run_tool(root):
    command = [sys.executable, str(TOOL), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_function_counts_from_signature_to_closing_brace():
    code = "namespace a {\n\nint twice(int x,\n          int y) {\n  return x * y;\n}\n\n}  // namespace a\n"
    assert found(code) == [("twice", 3, 4)]


def test_methods_and_access_labels():
    code = "class A : public B {\n public:\n  int a() const { return 1; }\n\n private:\n  int a_ = 0;\n};\n"
    assert found(code) == [("a", 3, 1)]


def test_constructor_with_braced_members_is_one_function():
    code = "A::A(int n)\n    : a_{n}, b_(n), c_{f(n)} {\n  use(n);\n}\nvoid g() {}\n"
    assert found(code) == [("A::A", 1, 4), ("g", 5, 1)]


def test_tables_and_braced_variables_are_no_functions():
    code = (
        "constexpr int kSizes[] = {1, 2, 3};\n"
        "const Table kTable{{f(1), 2}, {f(3), 4}};\n"
        "const auto kMade = make({1, 2});\n"
        "struct P { int x{3}; std::string s = std::string(3, 'x'); };\n"
        "enum class E : int { kA, kB };\n"
    )
    assert found(code) == []


def test_braces_in_literals_comments_and_macros_do_not_count():
    code = (
        "#define OPEN(x) \\\n  if (x) {\n"
        "void f() {  // {\n"
        "  g(\"{\", '{', R\"({ {)\");  /* { */\n"
        "  const int big = 1'000'000;\n"
        "}\nvoid h() {}\n"
    )
    assert found(code) == [("f", 3, 4), ("h", 7, 1)]


def test_lambdas_belong_to_their_function_but_count_when_alone():
    code = "void f() {\n  run([&] {\n    g();\n  });\n}\nconst auto kCall = [](int x) {\n  return x;\n};\n"
    assert [lines for _, _, lines in found(code)] == [5, 3]


def test_operators_templates_and_trailing_return_types():
    code = (
        "template <typename T = std::vector<int>>\nbool operator==(const T& a, const T& b) {\n  return true;\n}\n"
        "auto f(int x) noexcept -> std::vector<int> {\n  return {x};\n}\n"
        "extern \"C\" {\nint c() { return 0; }\n}\n"
    )
    assert [(line, lines) for _, line, lines in found(code)] == [(1, 4), (5, 3), (9, 1)]


def test_test_macros_are_named_with_their_arguments():
    assert found("TEST(Layout, Empty) {\n}\n") == [("TEST(Layout, Empty)", 1, 2)]


def test_every_kind_of_excess_is_reported(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "src" / "long.cpp").write_text("int a;\n" * 501)
    (tmp_path / "include" / "long.h").write_text("int a;\n" * 251)
    (tmp_path / "src" / "f.cpp").write_text("void f() {\n" + "  g();\n" * 59 + "}\n")
    (tmp_path / "tools" / "f.py").write_text("def f():\n" + "    g()\n" * 60)
    result = run_tool(tmp_path)
    assert result.returncode == 1
    reported = result.stdout.splitlines()
    assert "src/long.cpp: 501 lines, the cap is 500" in reported
    assert "include/long.h: 251 lines, the cap is 250" in reported
    assert "src/f.cpp:1: f has 61 lines, the cap is 60" in reported
    assert "tools/f.py:1: f has 61 lines, the cap is 60" in reported


def test_sizes_at_the_caps_pass(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f.cpp").write_text(
        "int a;\n" * 440 + "void f() {\n" + "  g();\n" * 58 + "}\n"
    )
    result = run_tool(tmp_path)
    assert result.returncode == 0, result.stdout
    assert "1 functions, median 60 lines, largest 60" in result.stdout
