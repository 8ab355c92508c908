"""The adapter reads what bash reads, also where the grammar of tree-sitter-bash 0.25 does not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from hpc_kit.check.bash_syntax import Block, CompoundCommand, SimpleCommand, parse


def commands(block: Block) -> Iterator[str]:
    """The commands of a block, each as its words; compound commands by their kind."""
    for statement in block:
        for pipeline in statement.chain.pipelines:
            for command in pipeline.commands:
                if isinstance(command, SimpleCommand):
                    yield " ".join([f"{each.name}=" for each in command.assignments] + [w.raw for w in command.words])
                else:
                    yield f"<{command.kind}>"
                    for _, body in command.bodies:
                        yield from commands(body)


# The grammar alone makes an error of these, or reads other commands out of them without one.
CONSTRUCTS = [
    ("a | b | c\nd >e\nf", ["a", "b", "c", "d", "f"]),
    ("A= B=\nwhile c; do d; done", ["A= B=", "<while>", "c", "d"]),
    ("srun bash <<E &\nx\nE\nwait", ["srun bash", "wait"]),
    ("cat <<A <<-'B' >o\n1 (\nA\n\t2 '\n\tB\nc", ["cat", "c"]),
    ('x=$(cat <<E\nit\'s (\nE\n)\necho "$x"', ["x=", 'echo "$x"']),
    ("a `b 'c'` \"`d \\`e\\``\"\nf=\"` g 'h'`\"", ["a `b 'c'` \"`d \\`e\\``\"", "f="]),
    ("time -p { a; }; ! time b | time c", ["<group>", "a", "b", "time c"]),
    ('[[ $x = *"a b"* && ( -n $y ) ]] && a', ["<test>", "a"]),
    ('[ -f "$x" -o "$y" \\> z ] || a', ['[ -f "$x" -o "$y" \\> z ]', "a"]),
    ("[$x = y ] && a", ["[$x = y ]", "a"]),
    ("! for i in a; do b; done", ["<for>", "b"]),
    ("for i do a; done", ["<for>", "a"]),
    ("case $x in ?*' '?*) a ;; *) b ;; esac", ["<case>", "a", "b"]),
    ("A=1 2>/dev/null && b", ["A=", "b"]),
    ('{ a; } <<<"$x" && ( b ) <<<c', ["<group>", "a", "<subshell>", "b"]),
    ("exec 3<>f && a @(b|c)", ["exec", "a @(b|c)"]),
    ("a $(b | grep -v ^c$) $((10#$x)) y$", ["a $(b | grep -v ^c$) $((10#$x)) y$"]),
    (">log srun python t.py", ["srun python t.py"]),
    ("if ! a | b -i - 2>&1 | c; then d; fi", ["<if>", "a", "b -i -", "c", "d"]),
    ("srun –n 8 it’s \\\n  a\\ b\\\n", ["srun –n 8 it’s a\\ b"]),
    ("! (( x > 1 )) && a", ["<arithmetic>", "a"]),
]


@pytest.mark.parametrize(("text", "expected"), CONSTRUCTS)
def test_constructs_missing_from_the_grammar_are_read(text: str, expected: list[str]) -> None:
    assert subprocess.run(["bash", "-O", "extglob", "-n"], input=text, text=True).returncode == 0
    tree = parse(text)
    assert tree.problem is None
    assert list(commands(tree.block)) == expected


def test_redirections_and_negations_belong_to_their_command() -> None:
    (first, second) = parse("! a && b 2>&1 | cat <<E >out\n$x `y`\nE\n! ! c").block
    assert first.chain.operators == ("&&",)
    negated, piped = first.chain.pipelines
    assert (negated.negated, piped.negated, second.chain.pipelines[0].negated) == (True, False, False)
    copied = piped.commands[-1]
    assert isinstance(copied, SimpleCommand)
    assert copied.output is not None
    assert copied.output.raw == "out"
    assert [part.kind for part in copied.document or ()] == ["variable", "text", "command", "text"]


def test_variables_inside_plain_text_of_the_grammar_are_found() -> None:
    (statement,) = parse('a gz$$ "$1_x ${y}" $"t" "u \\`${v}\\`" w$\'\\t\'').block
    (command,) = statement.chain.pipelines[0].commands
    assert isinstance(command, SimpleCommand)
    found = [(part.kind, part.text, part.quoted) for word in command.words[1:] for part in word.parts]
    assert found[:5] == [
        ("text", "gz", False),
        ("variable", "$", False),
        ("variable", "1", True),
        ("text", "_x", True),
        ("text", " ", True),
    ]
    assert found[5:] == [
        ("variable", "y", True),
        ("text", "t", True),
        ("text", "u ", True),
        ("text", "`", True),
        ("variable", "v", True),
        ("text", "`", True),
        ("text", "w", False),
        ("text", "\t", True),
    ]


@pytest.mark.parametrize(
    ("text", "kept", "line"),
    [
        ("a\nb\nif c; then d\ne", ["a", "b"], 3),
        ("a\nb ) c\nd", ["a"], 2),
        ("a\necho 'x\ny", ["a"], 2),
        ("a; b $(c\nd", [], 1),
        ("a\n{ b\nc", ["a"], 2),
        ("a\ndone\nb", ["a"], 2),
        ("a\nf() { if b; then c; }\nd", ["a"], 2),
    ],
)
def test_reading_stops_at_the_first_syntax_error(text: str, kept: list[str], line: int) -> None:
    tree = parse(text)
    assert tree.problem is not None
    assert tree.problem.line == line
    assert list(commands(tree.block)) == kept


def test_very_deep_nesting_is_a_syntax_problem_without_a_traceback() -> None:
    tree = parse("a\n" + "( " * 3000 + "b" + " )" * 3000)
    assert tree.problem is not None


def test_a_function_keeps_its_name() -> None:
    kinds = [
        (command.kind, command.name)
        for statement in parse("f() { a; }\nfunction g { b; }\nfor x in y; do c; done").block
        for command in statement.chain.pipelines[0].commands
        if isinstance(command, CompoundCommand)
    ]
    assert kinds == [("function", "f"), ("function", "g"), ("for", "x")]


def test_a_case_statement_in_a_multi_line_list_is_read() -> None:
    text = "while a\ndo\n\tcase b in 1) c ;; esac\n\td || {\n\t\te\n\t} ||\n\tf\ndone <g\nh\n"
    assert list(commands(parse(text).block)) == ["<while>", "a", "<case>", "c", "d", "<group>", "e", "f", "h"]
