"""The reader understands a script as bash does, without running it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_kit.check.bash_syntax import CompoundCommand, parse
from hpc_kit.check.batch_script import BatchScript
from hpc_kit.check.launch_lines import LaunchLine
from hpc_kit.slurm.sizes import size_of_job
from tests import golden

HEAD = "#!/bin/bash\n"


def read(text: str) -> BatchScript:
    return BatchScript(HEAD + text, "test.sbatch")


def read_launch(text: str) -> LaunchLine:
    (launch,) = read(text).launch_lines
    return launch


def list_kinds(launch: LaunchLine) -> list[str]:
    return [stage.kind for stage in launch.stages]


# What bash makes of words, and we.

SHOW = "show() { printf '%s\\0' \"$@\"; }\n"
WORDS = [
    "a b  c",
    r"""a"b c"'d $x'\ e""",
    "$'tab\\there'",
    "''",
    '"" x',
    'x=1; y="a b"; show $x "$y" $y "$y"$y',
    "x='a  b'; show \"$x\" ${x} pre$x",
    "a=(1 '2 3' 4); a+=(5); show \"${a[@]}\" ${a[@]}",
    "n=3; show $((n * 8)) $(( $n + 1 )) $((n / 2))",
    "n=1; show $(((n - 8) / 2)) $((7 / (1 - 3))) $((8 / 2))",
    "show ${unset_name:-default} ${unset_name-8}",
    "x=; show ${x}y",
    'x="a"; x+="b"; show "$x"',
    "x=1; if true; then y=2; fi; show $x",
    "show a#b # a comment",
    "show a \\\n  b",
    "CMD='python t.py --x 1'; show $CMD",
    "{ x=5; }; show $x",
    "export X=7 Y=8; show $X$Y",
    'x=1; eval "x=2"; show $x',
    'show "a\\$b" \'c\\d\' "e\\f"',
]


@pytest.mark.parametrize("text", WORDS)
def test_words_expand_as_in_bash(text: str) -> None:
    text = text if "show" in text else f"show {text}"
    done = subprocess.run(["bash", "-c", SHOW + text], capture_output=True, check=True)
    step = next(step for step in read(text).commands if step.name == "show")
    assert [word.text for word in step.words[1:]] == done.stdout.decode().split("\0")[:-1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12), max_size=4))
def test_quoted_words_read_back_unchanged(words: list[str]) -> None:
    step = read(f"show {shlex.join(words)}").commands[0]
    assert [word.text for word in step.words[1:]] == words


PIECES = [
    *"ab1 \n\t$'\"\\`(){}[];&|<>#=!*@-",
    "if ",
    "then ",
    "fi\n",
    "do ",
    "done\n",
    "<<E",
    "$(",
    "case ",
    "esac ",
    "=(",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join))
def test_the_reader_accepts_any_text(text: str) -> None:
    script = BatchScript(text or "x")
    assert script.launch_lines is not None
    assert script.problems is not None
    assert script.unread_part is None or script.unread_part.startswith(
        ("the text from line ", "the rules of the shell: the script is for ")
    )


@pytest.mark.parametrize(
    "text",
    [
        "if a; then b",
        "echo 'x",
        'echo "x',
        "a | ; b",
        "(a",
        "case x in a) b",
        "{ a",
        "x=$(a",
        "a ) b",
        "while x; do y",
        "a=(b",
    ],
)
def test_a_script_that_bash_rejects_is_rejected(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode != 0
    assert parse(text).problem is not None


@pytest.mark.parametrize(
    "text",
    [
        "for ((i = 0; i < 3; i++)); do echo $i; done",
        "for i in a b; do x; done | tee log",
        "case $x in (a|b) y ;; *) z ;& c) w ;; esac",
        "[[ $a =~ ^(x|y)$ && -n $b ]] || exit",
        "if ! a; then b; elif c; then d; else e; fi >log 2>&1",
        "f() { a; }; function g { b; }; function h() ( c )",
        "x=$(case a in a) echo b;; esac)",
        "x=$(cat <<E\nit's (\nE\n)",
        "cat <<-'E' | sort\n\t$x\n\tE\necho done",
        "((x = 1)); echo $((1 + (2 * 3)))",
        "a & b && c || d; { e; } 2>/dev/null &",
        "diff <(a) >(b)",
        "select x in a b; do y; done",
        "time -p ls; ! false",
        'echo ${x%%[0-9]*} ${y//a/\\}} ${#z[@]} "${q:-"a b"}"',
        'echo `date "+%s"` `echo \\`x\\``',
        "a=1 b=(2 3) c 4>&1 {fd}>file",
        "while read -r x; do :; done < <(ls)",
        "echo a;# comment\necho b",
        "until a\ndo b\ndone",
        "if [ a ]\nthen\n# comment\nb\nfi",
    ],
)
def test_a_script_that_bash_accepts_is_accepted(text: str) -> None:
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert parse(text).problem is None


def test_the_tree_shows_operators_bodies_and_lines() -> None:
    (loop, last) = parse("for x in a; do b & done | c && d || e\nf").block
    first = loop.chain.pipelines[0]
    assert loop.chain.operators == ("&&", "||")
    assert isinstance(first.commands[0], CompoundCommand)
    assert first.commands[0].bodies[0][1][0].background
    assert (last.line, last.background) == (2, False)


# Directives


def test_directives_have_line_and_column() -> None:
    script = read("#SBATCH -N4 --ntasks-per-node 2 # two\n#SBATCH --job-name='a b'\necho\n#SBATCH --time=1\n")
    places = [(each.name, each.value, each.line, each.column) for each in script.directive_options]
    assert places == [("nodes", "4", 2, 9), ("ntasks-per-node", "2", 2, 31), ("job-name", "a b", 3, 9)]
    assert [line.line for line in script.directives.late] == [5]


def test_every_wrong_directive_is_found() -> None:
    script = read("#SBATCH --ndoes=4\n#SBATCH --time=2h\n#SBATCH --mem='1\n#SBATCH foo\n#SBATCH --nodes=2\n")
    assert [(problem.line, problem.column) for problem in script.problems] == [(2, 9), (3, 9), (4, 1), (5, 9)]
    assert script.options == {"nodes": "2"}


def test_an_option_of_the_container_plugin_is_accepted() -> None:
    script = read("#SBATCH --container-image nvcr.io/x:1 --no-container-mount-home\n#SBATCH -N2\n")
    assert (script.problems, script.options) == ((), {"nodes": "2"})


def test_text_of_a_here_document_is_neither_directive_nor_command() -> None:
    script = read("cat >x.sbatch <<'E'\n#SBATCH --nodes=4\nsrun $SLURM_PROCID\nE\n# end\n")
    assert script.comments == {1: 1, 6: 1}
    assert [launch.program.name for launch in script.launch_lines] == ["cat"]


@pytest.mark.parametrize("first", ["", "#SBATCH --nodes=3\n", "\n"])
def test_a_script_without_an_interpreter_line_is_read(first: str) -> None:
    script = BatchScript(first + "#SBATCH --ntasks=2\nsrun x\n")
    assert script.interpreter is None
    assert script.options["ntasks"] == "2"
    assert script.line_of("ntasks") == first.count("\n") + 1


def test_interpreters_are_recognized_by_name() -> None:
    lines = {"#!/bin/bash -l": "bash", "#! /usr/bin/env -S zsh -x": "zsh", "#!/usr/bin/python3": "python3", "#!": None}
    assert {line: BatchScript(line + "\n").interpreter for line in lines} == lines
    assert BatchScript("#!/usr/bin/python3\nx = {\n").unread_part == "the rules of the shell: the script is for python3"


# Launch lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun -N4 -n 8 python -u train.py", ["srun", "python"]),
        ("srun torchrun --nproc-per-node 8 train.py", ["srun", "torchrun", "python"]),
        ("python3.11 -m torch.distributed.run --nnodes=2 -m pkg.train", ["torchrun", "python"]),
        ("mpirun -np 8 -x A=1 --map-by ppr:1:node ./app", ["mpirun", "program"]),
        ("mpiexec -genv A 1 -n 4 python t.py", ["mpirun", "python"]),
        ("srun --mpi=pmix accelerate launch --multi_gpu --num_processes 8 t.py", ["srun", "accelerate", "python"]),
        ("accelerate config", ["program"]),
        ("python -m accelerate.commands.launch t.py", ["accelerate", "python"]),
        ("python -m accelerate launch t.py", ["accelerate", "python"]),
        ("deepspeed --hostfile h --num_gpus 8 t.py", ["deepspeed", "python"]),
        ("time nohup timeout -s INT 3h env A=1 -u B python t.py", ["wrapper", "wrapper", "wrapper", "python"]),
        ("exec numactl --cpunodebind=0 python t.py", ["wrapper", "wrapper", "python"]),
        ("srun apptainer exec --nv -B /a:/b image.sif python t.py", ["srun", "wrapper", "python"]),
        ("srun --container-image x/y:1 --container-mounts=a:b python t.py", ["srun", "python"]),
        ("conda run -n env python t.py", ["wrapper", "python"]),
        ("srun $ARGS python t.py", ["srun", "python"]),
        ("srun bash -c 'cd x && python t.py'", ["srun", "shell", "python"]),
        ("srun bash -c '\"$@\"' task python t.py", ["srun", "shell", "python"]),
        ("srun bash -o pipefail -xc 'exec \"$1\" t.py' task python", ["srun", "shell", "wrapper", "python"]),
        ("C='torchrun t.py'; srun $C", ["srun", "torchrun", "python"]),
        ("export C='torchrun t.py'; srun bash -c '$C'", ["srun", "shell", "torchrun", "python"]),
        ('C=(python t.py --x 1); srun "${C[@]}"', ["srun", "python"]),
        ('eval "srun python t.py"', ["srun", "python"]),
        ("srun bash run.sh", ["srun", "shell"]),
        ("torchrun --no-python ./app", ["torchrun", "program"]),
        ('"$PYTHON" t.py', ["program"]),
        ("if true; then srun python t.py; fi", ["srun", "python"]),
    ],
)
def test_a_launch_line_yields_its_programs(line: str, expected: list[str]) -> None:
    assert list_kinds(read_launch(line)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "cat >run.sh <<'E'\n#!/bin/bash\npython \"$1\" $X\nE\nsrun bash ./run.sh t.py\n",
        "cat <<E >run.sh\npython t.py\nE\nsrun ./run.sh\n",
        "srun bash <<-E\n\tpython t.py\n\tE\n",
        "ssh n1 bash -s <<E\npython t.py\nE\n",
        "ssh n1 <<E\npython t.py\nE\n",
        "read -r -d '' C <<'E'\npython t.py\nE\nsrun bash -c \"$C\"\n",
    ],
)
def test_code_of_a_here_document_is_read(text: str) -> None:
    launch = read(text).launch_lines[-1]
    assert list_kinds(launch)[-1] == "python"
    assert launch.program.options["file"].text == "t.py"
    assert launch.inner_command.line == 3 + text.startswith("cat >run")


def test_a_here_document_for_another_program_is_not_read_as_code() -> None:
    script = read("cat >a.py <<'E'\nimport os\nprint('it is', os)\nE\nsrun python - <<E\nx = (1\nE\nls\n")
    assert script.unread_part is None
    assert [step.name for step in script.commands] == ["cat", "srun", "ls"]


def test_the_parts_of_a_heterogeneous_line_are_each_a_launch_in_its_component() -> None:
    script = read(
        "#SBATCH -N2 --ntasks-per-node=1 -c2\n#SBATCH hetjob\n#SBATCH -N3 --ntasks-per-node=4\n"
        "srun --het-group=0 ./app : --het-group=1 bash -c 'python t.py'\nsrun --het-group=0,1 ./x\nsrun ./y\n"
    )
    first, second, both, alone = script.launch_lines
    assert (list_kinds(first), list_kinds(second)) == (["srun", "program"], ["srun", "shell", "python"])
    assert (second.stages[0].words[0].line, second.stages[0].words[0].column) == (5, 28)
    counts = [script.size_of(each)[:3] for each in (first, second, both, alone)]
    assert counts == [(2, 2, 1), (3, 12, 4), (5, 14, None), (2, 2, 1)]
    assert [script.line_of("nodes", launch=each) for each in (first, second)] == [2, 4]


def test_options_are_found_in_every_spelling() -> None:
    launch = read_launch(
        "srun -N4 --ntasks=8 -c2 torchrun --nproc_per_node 8 --rdzv-endpoint=h:1 t.py --nproc_per_node 9"
    )
    srun, torchrun = launch.stages[:2]
    assert {name: text.text for name, text in srun.options.items()} == {
        "nodes": "4",
        "ntasks": "8",
        "cpus-per-task": "2",
    }
    assert {name: text.text for name, text in torchrun.options.items()} == {
        "nproc-per-node": "8",
        "rdzv-endpoint": "h:1",
    }
    assert launch.program.options["file"].text == "t.py"


def test_places_are_right_behind_variables_and_nested_code() -> None:
    script = read(
        'CMD="torchrun \\\n  --nproc_per_node $N t.py"\nsrun bash -c \'\n  $CMD\n  python x.py\'\nsrun bash -c "$CMD"\n'
    )
    places = [
        (launch.program.words[0].text, launch.program.words[0].line, launch.command.line)
        for launch in script.launch_lines
    ]
    assert places == [("$CMD", 5, 4), ("python", 6, 4), ("python", 3, 7)]
    torchrun = script.launch_lines[2].stage("torchrun")
    assert torchrun is not None
    assert (torchrun.words[0].line, torchrun.words[0].column) == (2, 6)


def test_variables_have_the_scope_that_sees_them() -> None:
    script = read(
        "A=1\nexport B=2 C\nC=3 D=4 srun --export=ALL,E=5 bash -c 'export F=$SLURM_PROCID'\nset -a\nG=$SLURM_PROCID\n"
    )
    seen = {
        each.name: (each.value.text, each.is_exported, each.in_task, bool(each.value.task_variables))
        for each in script.assignments
    }
    assert seen == {
        "A": ("1", False, False, False),
        "B": ("2", True, False, False),
        "C": ("3", True, False, False),
        "D": ("4", True, False, False),
        "E": ("5", True, False, False),
        "F": ("$SLURM_PROCID", True, True, False),
        "G": ("$SLURM_PROCID", True, False, True),
    }


def test_a_variable_set_in_a_branch_or_loop_is_unknown_after_it() -> None:
    script = read("A=1; B=1\nif x; then A=2; fi\nfor B in 1 2; do :; done\nread C <<<4\nshow $A $B $C\n")
    assert [word.text for word in script.commands[-1].words] == ["show", "$A", "$B", "$C"]


def test_shell_options_apply_where_they_are_set() -> None:
    script = read("a\nset -euo pipefail\nb\nset +e\nc\n(set -e; d)\ne\nbash -c 'f'\n")
    seen = {step.name: (step.errexit, step.pipefail) for step in script.commands if len(step.name) == 1}
    both, pipefail, neither = (True, True), (False, True), (False, False)
    assert seen == {"a": neither, "b": both, "c": pipefail, "d": both, "e": pipefail, "f": neither}
    assert BatchScript("#!/bin/bash -e\na\n").commands[0].errexit


def test_slurms_counts_follow_from_the_directives() -> None:
    script = read(
        "#SBATCH -N4 --ntasks-per-node=8 --gres=gpu:a100:8\nshow $SLURM_NNODES $((SLURM_NNODES * SLURM_GPUS_ON_NODE))\n"
    )
    assert [word.text for word in script.commands[0].words[1:]] == ["4", "32"]


@pytest.mark.parametrize("case", golden.CASES)
def test_rendered_scripts_are_read_back(case: str) -> None:
    script = BatchScript(golden.script(case), case)
    *measuring, launch = [launch for launch in script.launch_lines if launch.is_training][
        : 3 if "preflight" in case else 1
    ]
    beside = [launch for launch in script.launch_lines if launch.is_training][1 + len(measuring) :]
    geometry = script.size_of(launch)
    # Under Ray the program runs beside the step, which is Ray's nodes.
    assert [each.stages[0].kind for each in beside] == ["python"] * case.startswith("ray_") + ["srun"] * (
        script.is_heterogeneous
    )
    assert script.unread_part is None
    assert script.problems == ()
    assert launch.program.kind == ("program" if case == "special_characters" else "python")
    if launch.stages[0].kind == "mpirun":  # it is told the number of ranks, and Slurm tells it the nodes
        assert geometry.ntasks == script.size.ntasks
        return
    if case.endswith(".spares"):  # the spare node is in the job and not in the step
        assert (geometry.nodes, script.size.nodes) == (4, 5)
    else:
        assert script.is_heterogeneous or geometry == script.size
    assert launch.stages[0].kind == "srun"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("$MPIRUN -n 4 python t.py", ["mpirun", "python"]),
        ('"${srun[@]}" python t.py', ["srun", "python"]),
        ("$TIME python t.py", ["program"]),
        ("$TORCHRUN t.py", ["program"]),
    ],
)
def test_a_launcher_in_a_variable_is_recognized(line: str, expected: list[str]) -> None:
    launch = read_launch(line)
    assert list_kinds(launch) == expected
    assert launch.stages[0].may_hide_options


# How many


@pytest.mark.parametrize(
    ("options", "nodes", "ntasks", "per_node"),
    [
        ({}, 1, 1, 1),
        ({"nodes": "4"}, 4, 4, 1),
        ({"nodes": "4", "ntasks-per-node": "2"}, 4, 8, 2),
        ({"nodes": "4", "ntasks": "8"}, 4, 8, 2),
        ({"nodes": "2", "ntasks": "7"}, 2, 7, None),
        ({"ntasks": "8"}, None, 8, None),
        ({"ntasks": "1"}, 1, 1, 1),
        ({"nodes": "2-4", "ntasks-per-node": "2"}, None, None, 2),
        ({"nodelist": "n[1-3]"}, 3, 3, 1),
        ({"nodes": "2", "ntasks-per-gpu": "1"}, 2, None, None),
    ],
)
def test_the_sizes_of_a_job_are_counted(
    options: dict[str, str], nodes: int | None, ntasks: int | None, per_node: int | None
) -> None:
    geometry = size_of_job(options)
    assert (geometry.nodes, geometry.ntasks, geometry.tasks_per_node) == (nodes, ntasks, per_node)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun x", (4, 8, 2)),
        ("srun -N2 -n2 x", (2, 2, 1)),
        ("srun -n4 x", (4, 4, 1)),
        ("srun -n1 x", (1, 1, 1)),
        ("srun --ntasks-per-node=1 x", (4, 4, 1)),
        ("srun -N$N x", (None, None, None)),
        ("srun $ARGS python x.py", (None, None, None)),
        ("srun -w n1 -n2 x", (None, 2, None)),
        ("mpirun -np 8 x", (4, 8, 2)),
        ("x", (1, 1, 1)),
    ],
)
def test_the_sizes_of_a_step_are_counted(line: str, expected: tuple[int | None, ...]) -> None:
    script = read(f"#SBATCH -N4 --ntasks-per-node=2\n{line}\n")
    geometry = script.size_of(script.launch_lines[0])
    assert (geometry.nodes, geometry.ntasks, geometry.tasks_per_node) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("untraced")
def test_reading_time_is_linear_in_the_lines() -> None:
    few, many = (HEAD + 'x=$(show "a $(b)") && srun bash -c \'ls "$x"\' || true\n' * lines for lines in (100, 400))
    assert _calls(many) < 4.5 * _calls(few)


def _calls(text: str) -> int:
    """Of functions, in reading a script: the same each time, however busy the machine."""
    counts: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: counts.update((event,)))
    try:
        assert len(BatchScript(text).launch_lines) == text.count("srun")
    finally:
        sys.setprofile(None)
    return counts["call"] + counts["c_call"]


def test_a_value_with_very_many_parts_is_not_expanded() -> None:
    lines = [f'V{number}="$V{number - 1}:x"' for number in range(1, 600)]
    script = read("V0=a\n" + "\n".join(lines) + '\nX="$V10"\nY="$V599"\n')
    assert script.assignments[-2].value.text == "a" + ":x" * 10
    assert len(script.assignments[-1].value.pieces) < 600
