"""Any input is read without a crash, and one sentence names what was not understood."""

from __future__ import annotations

import re
import string
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.rules import Finding, check
from hpc_kit.check.text_edits import apply_edits
from tests.check.test_corpus import CORPUS

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4\n"
SCRIPTS = [path.read_text() for path in sorted(CORPUS.glob("*/*.sbatch"))]
FRAGMENTS = sorted({line for text in SCRIPTS for line in text.splitlines()})
PIECES = [
    "$(", "`", "${", "$((", "))", "'", '"', "<<EOF\n", "EOF\n", "if ", "then ", "fi\n", "for x in ", "do ", "done\n",
    "case x in ", "esac\n", "{ ", "}\n", "(", ")", "\\\n", "|", "&", ";;", "srun ", "bash -c '", "torchrun ",
    "#SBATCH ",
    "\x00", "\u2013", "\ufeff", "\r\n", "[[ ", " ]]", "$x", "=", "exit $?", "wait\n", "trap '", "set -e\n",
]  # fmt: skip


def read(text: str) -> tuple[list[Finding], str | None]:
    script = BatchScript(text, "x")
    findings = check(script)
    for finding in findings:
        assert finding.line <= len(script.lines)
        assert finding.what
        assert finding.remedy
    apply_edits(text, [edit for finding in findings for edit in finding.edits])
    return findings, script.unread_part


@pytest.mark.parametrize(
    "calls",
    [
        "a() { b; b; b; b; }\nb() { a; a; a; a; }\na\n",
        "a() { local x=$(b) y=$(b) z=$(b); }\nb() { local x=$(a) y=$(a) z=$(a); }\nx=$(a)\n",
        "".join(f"f{n}() {{ {f'f{n + 1} $@; ' * 10}}}\n" for n in range(9)) + 'f9() { "$@"; }\nf0 srun python t.py\n',
    ],
)
def test_functions_that_call_each_other_take_no_long_time(calls: str) -> None:
    start = time.process_time()
    read(HEAD + calls)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\x01\x02",
        bytes(range(256)).decode("utf-8", errors="surrogateescape"),
        "#!/bin/bash",
        "#!/bin/bash\n'",
        "#!/bin/bash\nif (( <<END == 1 )); then\n    ls\nfi\n",
        "#!/bin/bash\ncat <<EOF\nnever closed\n",
        "#!/usr/bin/perl\nprint $x{'a'};\n",
        "#!/bin/bash\nA=$B\nB=$A\nsrun python $A\n",
        "#!/bin/bash\n#SBATCH -n 1\nfor s in a b; do echo $s; done | tee runs/$SLURM_JOB_ID/x\n",
        "#!/bin/bash\n#SBATCH --requeue\ncase $1 in a) : ;; esac && rm -rf ckpt\npython t.py --ckpt ckpt\n",
        '#!/bin/bash\nrun() { run; }\nrun\nsrun bash -c "$(run)"\n',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_odd_input_is_read(text: str) -> None:
    read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("srun python t.py 'unfinished\n", "from line 3 on"),
        ("if true; then\n srun python t.py\n", "from line 3 on"),
        ("$(" * 3000 + ")" * 3000 + "\n", "line 3"),
        ("( " * 3000 + "ls" + ")" * 3000 + "\n", "line 3"),
        ("if x; then\n" * 3000 + "fi\n" * 3000, "line"),
    ],
    ids=["quote", "if", "substitutions", "subshells", "ifs"],
)
def test_the_unread_part_is_named(text: str, words: str) -> None:
    unread = read(HEAD + text)[1]
    assert unread is not None
    assert words in unread
    assert "\n" not in unread


def test_directives_in_a_here_document_are_text() -> None:
    findings, unread = read("#!/bin/bash\ncat >job.sh <<E\n#!/bin/bash\n#SBATCH --ndoes=2\nE\nsbatch job.sh\n")
    assert (findings, unread) == ([], None)


@pytest.mark.parametrize("lines", [4_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_long_script_takes_seconds(lines: int) -> None:
    start = time.process_time()
    text = "export MASTER_PORT=29500\n" + "export A=1; echo $A\nsrun -n1 hostname\n" * (lines // 2)
    findings, unread = read(HEAD + text)
    assert "KIT302" in {finding.code for finding in findings}
    assert unread is not None
    assert "more than 1500 commands" in unread
    assert time.process_time() - start < 60


def test_two_hundred_pipes_that_set_a_variable_take_seconds() -> None:
    start = time.process_time()
    findings, _ = read(HEAD + "n=0\n" + "ls | while read f; do n=$((n+1)); echo $f; done\n" * 200 + "python t.py $n\n")
    assert "KIT138" in {finding.code for finding in findings}
    assert time.process_time() - start < 10


@pytest.mark.parametrize("steps", [200, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (800, 2800))])
def test_many_steps_in_branches_take_seconds(steps: int) -> None:
    start = time.process_time()
    branch = "if [ $X = {0} ]; then srun python t.py | tee a; else srun python u.py | tee b; fi\n"
    findings, unread = read(HEAD + "".join(map(branch.format, range(steps // 2))))
    assert "KIT403" in {finding.code for finding in findings}
    assert unread is None
    assert time.process_time() - start < steps / 40


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(FRAGMENTS + PIECES) | st.text(string.printable, max_size=12), max_size=25))
def test_mixed_fragments_of_scripts_are_read(fragments: list[str]) -> None:
    read(HEAD + "\n".join(fragments) + "\n")


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SCRIPTS), st.data())
def test_a_script_with_a_cut_or_an_insertion_is_read(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    read(text[:start] + data.draw(st.sampled_from(["", *PIECES])) + text[end:])


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400))
def test_any_bytes_are_read(data: bytes) -> None:
    read(data.decode("utf-8", errors="surrogateescape"))


@pytest.mark.parametrize("number", ["²", "\u0663", "9" * 5000, "0"])
def test_numbers_that_the_shell_does_not_know_are_text(number: str) -> None:
    for text in SCRIPTS[::25]:
        read(re.sub(r"\b\d+\b", number, text))
