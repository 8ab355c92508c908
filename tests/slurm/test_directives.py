"""#SBATCH lines: read exactly as the real sbatch reads them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_kit.errors import DirectiveError
from hpc_kit.slurm.directives import DirectiveWord, read_directives

from .oracle import Refused, sbatch_defined_options

SHEBANG = "#!/bin/bash\n"

# What stands below the shebang, and the options that Slurm 22.05 makes of it.
READ = {
    "two options on a line": ("#SBATCH -N2 --time=5", {"nodes": "2", "time": "5"}),
    "a value on the next line": ("#SBATCH --time\n#SBATCH 5", {"time": "5"}),
    "an escaped quote": ('#SBATCH -J a\\"b -N2', {"job-name": 'a"b', "nodes": "2"}),
    "an escaped quote in quotes": ('#SBATCH -J "a\\"b" -N2', {"job-name": 'a"b', "nodes": "2"}),
    "an escaped quote in single quotes": ("#SBATCH -J 'a\\'b' -N2", {"job-name": "a'b", "nodes": "2"}),
    "quotes inside a word": ("#SBATCH --job-name=a'b c'd\"e f\"", {"job-name": "ab cde f"}),
    "a backslash at the end": ("#SBATCH -N2 -J a\\\n#SBATCH -t3", {"nodes": "2", "job-name": "a", "time": "3"}),
    "a backslash before a space": ("#SBATCH -J a\\ -N2", {"job-name": "a", "nodes": "2"}),
    "two backslashes": ("#SBATCH -J a\\\\b", {"job-name": "a\\b"}),
    "a lone backslash ends the line": ("#SBATCH \\ -N2\n#SBATCH -t3", {"time": "3"}),
    "a hash inside a word": ("#SBATCH -J a#b -N2", {"job-name": "a"}),
    "a quoted hash": ("#SBATCH -J 'a#b' -N2", {"job-name": "a#b", "nodes": "2"}),
    "an escaped hash": ("#SBATCH -J a\\#b -N2", {"job-name": "a#b", "nodes": "2"}),
    "a comment": ("#SBATCH -N2 # -t3", {"nodes": "2"}),
    "an empty word ends the line": ('#SBATCH -J "" -N 2\n#SBATCH --time=3', {"job-name": "--time=3"}),
    "an empty value does not": ('#SBATCH --comment="" -N 2', {"comment": "", "nodes": "2"}),
    "glued to the mark": ("#SBATCH-N2", {"nodes": "2"}),
    "an indented mark is a comment": (" #SBATCH -N2\n#SBATCH -t3", {"time": "3"}),
    "other comments": ("# SBATCH -N2\n##SBATCH -N3\n#sbatch -N4", {}),
    "below a command": ("#SBATCH -N2\necho\n#SBATCH -t3", {"nodes": "2"}),
    "below blank lines and comments": ("#SBATCH -N2\n\n   \n\t# x\n#SBATCH -t3", {"nodes": "2", "time": "3"}),
    "tabs and form feeds": ("#SBATCH\t-N2\x0c-t3", {"nodes": "2", "time": "3"}),
    "a no-break space is no space": ("#SBATCH -J\u00a0x", {"job-name": "\u00a0x"}),
    "the last one wins": ("#SBATCH -N2\n#SBATCH -N3", {"nodes": "3"}),
    "nothing behind the mark": ("#SBATCH\n#SBATCH #\n#SBATCH -N2", {"nodes": "2"}),
    "nothing is expanded": ("#SBATCH -J $HOME", {"job-name": "$HOME"}),
    "unicode": ("#SBATCH -J 'é漢'", {"job-name": "é漢"}),
    "two dashes end nothing": ("#SBATCH -N2 --\n#SBATCH", {"nodes": "2"}),
    "a long value": (f"#SBATCH --comment={'x' * 9000} -N2", {"comment": "x" * 9000, "nodes": "2"}),
    "abbreviations": ("#SBATCH --ntasks-per-nod=2 --tasks-per-node=3", {"ntasks-per-node": "3"}),
    "only the first component": ("#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3", {"nodes": "2"}),
}

REFUSED = {
    "a word that is no option": ("#SBATCH -N 2 foo", "Invalid directive found in batch script: foo"),
    "an optional value without =": ("#SBATCH --exclusive user", "Invalid directive found in batch script: user"),
    "an escaped space": ("#SBATCH -J my\\ job", "Invalid directive found in batch script: job"),
    "an option behind --": ("#SBATCH -N2 -- -t3", "Invalid directive found in batch script: -t3"),
    "a word glued to the mark": ("#SBATCHX -N2", "Invalid directive found in batch script: X"),
    "a quoted hetjob": ("#SBATCH 'hetjob'", "Invalid directive found in batch script: hetjob"),
    "an unknown option": ("#SBATCH --ndoes=4", "unrecognized option '--ndoes=4'"),
    "an open quote": ("#SBATCH -J 'x", "Unmatched `'` in [ 'x]"),
    "an escape that keeps a quote open": ("#SBATCH -J 'a\\' -N2", "Unmatched `'`"),
    "a colon alone": ("#SBATCH -N2 : -N3", "in [ : -N3]"),
    "a value missing": ("#SBATCH -N2\n#SBATCH --time", "option '--time' requires an argument"),
}


def read(script: str) -> dict[str, str]:
    return {each.option.name: each.value or "" for each in read_directives(script).options().given}


@pytest.mark.parametrize(("body", "expected"), READ.values(), ids=READ)
def test_directives_are_read(body: str, expected: dict[str, str]) -> None:
    assert read(f"{SHEBANG}{body}\n") == expected


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(("body", "expected"), READ.values(), ids=READ)
def test_directives_are_read_as_sbatch_does(body: str, expected: dict[str, str]) -> None:
    seen = sbatch_defined_options(f"{SHEBANG}{body}\n")
    # sbatch prints times in its own form.
    assert {name: value for name, value in seen.items() if name != "time"} == {
        name: value for name, value in expected.items() if name != "time"
    }
    assert ("time" in seen) == ("time" in expected)


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_refuses_in_slurms_words(body: str, words: str) -> None:
    with pytest.raises(DirectiveError) as caught:
        read(f"{SHEBANG}{body}\n")
    assert words in str(caught.value.found)
    assert caught.value.remedy


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_sbatch_refuses_in_the_same_words(body: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        sbatch_defined_options(f"{SHEBANG}{body}\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("script", "what", "words"),
    [
        ("", "the batch script is empty", "Batch script is empty!"),
        ("  \n\n", "the batch script is empty", "Batch script contains only whitespace!"),
        ("#SBATCH -N2\n", "names no interpreter", "This does not look like a batch script"),
        ("\n#!/bin/bash\n", "names no interpreter", "This does not look like a batch script"),
        ("#!/bin/bash\r\n#SBATCH -N2\r\n", "DOS line breaks", "Batch script contains DOS line breaks"),
        ("#!/bin/bash\n\0\n", "a NUL byte", "NULL character"),
    ],
)
def test_a_file_that_is_no_batch_script_is_refused(script: str, what: str, words: str) -> None:
    with pytest.raises(DirectiveError, match=what) as caught:
        read_directives(script)
    assert words in str(caught.value.found)


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "Batch script is empty!"),
        ("  \n\n", "Batch script contains only whitespace!"),
        ("#SBATCH -N2\n", "This does not look like a batch script"),
        ("#!/bin/bash\r\n", "Batch script contains DOS line breaks"),
        ("#!/bin/bash\n\0\n", "NULL character"),
    ],
)
def test_sbatch_refuses_the_same_scripts(script: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        sbatch_defined_options(script)
    assert words in str(caught.value)


def test_late_and_foreign_directives_are_listed_with_their_lines() -> None:
    found = read_directives(f"{SHEBANG}#SBATCH -N2\n#PBS -N x\n#BSUB -J y\nexport A=1\n#SBATCH 't3\n#PBS -q z\n")
    assert [(each.line, each.words) for each in found.lines] == [(2, (DirectiveWord("-N2", 9),))]
    assert [(each.line, each.text) for each in found.late] == [(6, "#SBATCH 't3")]
    assert [(each.line, each.text) for each in found.foreign] == [(3, "#PBS -N x"), (4, "#BSUB -J y")]


def test_an_error_names_the_line() -> None:
    with pytest.raises(DirectiveError, match="sbatch does not take, line 4\n"):
        read(f"{SHEBANG}#SBATCH -N2\n\n#SBATCH --ndoes=4\n")
    with pytest.raises(DirectiveError, match="no option, line 3\n"):
        read(f"{SHEBANG}#SBATCH -N2\n#SBATCH -t 3 foo\n#SBATCH -J x\n")


def test_each_component_of_a_heterogeneous_job_has_its_options() -> None:
    found = read_directives(f"{SHEBANG}#SBATCH -N2 -J x\n#SBATCH hetjob\n#SBATCH -N3\n#SBATCH  packjob # last\n")
    given_options = [found.options(index).given for index in range(len(found.components()))]
    assert [[(each.option.name, each.value) for each in given] for given in given_options] == [
        [("nodes", "2"), ("job-name", "x")],
        [("nodes", "3")],
        [],
    ]


pieces = st.sampled_from(
    [
        "-J",
        "-J",
        "--hold",
        "--comment=",
        "a",
        "b",
        "é",
        " ",
        "  ",
        "\t",
        "'",
        '"',
        "\\",
        "#",
        "=",
        "--",
        "$x",
        "\n#SBATCH ",
    ]
)


@pytest.mark.oracle("sbatch")
@settings(max_examples=150, deadline=None)
@given(st.lists(pieces, max_size=10).map("".join))
def test_any_line_is_read_or_refused_as_sbatch_does(body: str) -> None:
    script = f"{SHEBANG}#SBATCH {body}\n"
    try:
        theirs = sbatch_defined_options(script)
    except Refused:
        with pytest.raises(DirectiveError):
            read(script)
        return
    ours = read(script)
    ours |= {"hold": "set"} if "hold" in ours else {}
    assert ours == theirs


@pytest.mark.oracle("sbatch")
@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20))
def test_a_quoted_name_reads_back_unchanged(name: str) -> None:
    quoted = shlex.quote(name.replace("\\", "\\\\")).replace("'\"'\"'", "\\'")
    script = f"{SHEBANG}#SBATCH --job-name={quoted}\n"
    assert read(script) == {"job-name": name}
    assert sbatch_defined_options(script) == {"job-name": name}
