"""Rendered scripts equal the golden ones, and are accepted by bash, shellcheck and the real sbatch."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpc_kit.errors import SpecError, TemplateError
from hpc_kit.runs.logs import expand_pattern
from hpc_kit.script import quoting
from hpc_kit.script.context import directives, template_values
from hpc_kit.script.quoting import comment_text, directive_value, shell_word
from hpc_kit.script.render import render, render_resolved
from hpc_kit.script.shell_files import read_shell_files
from hpc_kit.slurm.command_environment import submit_environment
from hpc_kit.slurm.directives import read_directives
from hpc_kit.spec import load
from hpc_kit.spec.job import Job
from hpc_kit.spec.resolve import resolve
from hpc_kit.spec.resources import Resources
from tests import golden
from tests.conftest import ROOT
from tests.slurm.oracle import sbatch_defined_options

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)

REWORDED = {"open-mode"}
"""Options that sbatch lists in another form (`a` for append)."""

TEMPLATES = sorted((ROOT / "templates").rglob("*.j2"))


def options(script: str) -> list[tuple[str, str | None]]:
    return [(given.option.name, given.value) for given in read_directives(script).options().given]


@pytest.mark.parametrize("case", golden.CASES)
def test_a_script_is_the_golden_one(case: str) -> None:
    kept = golden.SCRIPTS / f"{case}.sbatch"
    assert golden.script(case) == kept.read_text(), "after a wanted change: make golden, and read the diff"


def test_every_golden_script_has_a_job() -> None:
    assert {path.stem for path in golden.SCRIPTS.glob("*.sbatch")} == set(golden.CASES)


@pytest.mark.parametrize("case", golden.CASES)
def test_a_script_is_valid_bash(case: str) -> None:
    done = subprocess.run(["bash", "-n"], input=golden.script(case), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.oracle("shellcheck")
@pytest.mark.parametrize("case", golden.CASES)
def test_shellcheck_finds_nothing(case: str) -> None:
    done = subprocess.run(["shellcheck", "-"], input=golden.script(case), text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("case", golden.CASES)
def test_no_value_is_rendered_as_none_or_empty(case: str) -> None:
    text = golden.script(case)
    assert not re.search(r"\bNone\b|\{\{|\}\}|^#SBATCH .*=$", text, re.MULTILINE)
    assert text.endswith('exit "$status"\n')


def test_the_page_of_templates_names_every_value_and_file() -> None:
    page = (ROOT / "docs" / "templates.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", page.partition("## Values")[2].partition("\n## ")[0], re.MULTILINE)
    resolved = resolve(load.load("single", "local", root=ROOT), root=ROOT)
    values = template_values(resolved, template="x", standalone=False, shell=read_shell_files(resolved, ROOT))
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == values.keys() | {"run_files"}
    folder = ROOT / "templates"
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    assert [name for name in files if f"`{name}`" not in page] == []


@pytest.mark.parametrize("case", golden.CASES)
def test_the_reader_of_directives_reads_every_script(case: str) -> None:
    job, cluster, changes, variant = golden.CASES[case]
    loaded = load.load(job, cluster, set={**golden.PYTHON, **changes}, root=ROOT)
    given = directives(resolve(loaded, root=ROOT), standalone=variant == "standalone")
    wanted = [(name, None if value is None else str(value)) for name, value in given]
    assert options(golden.script(case)) == wanted


@pytest.mark.oracle("sbatch")
@pytest.mark.parametrize("case", golden.CASES)
def test_sbatch_reads_every_directive_with_its_value(case: str) -> None:
    read = sbatch_defined_options(golden.script(case))
    for name, value in options(golden.script(case)):
        if name not in REWORDED:
            assert read[name].endswith(value or ""), name


@pytest.mark.oracle("sbatch")
@settings(max_examples=60, deadline=None)
@given(text=TEXT)
def test_sbatch_reads_unusual_names_unchanged(text: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --comment={directive_value(text)}\n#SBATCH --time=5\ntrue\n"
    assert sbatch_defined_options(script)["comment"] == text


def test_same_input_gives_same_bytes() -> None:
    assert len({golden.script("ddp_4node") for _ in range(3)}) == 1


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_value_of_a_template_ends_in_a_quoting_filter(path: Path) -> None:
    """An unquoted value is an error for some inputs. Only the text of a macro needs no quoting."""
    expressions = re.findall(r"\{\{-?(.*?)-?\}\}", path.read_text(), re.DOTALL)
    filters = "|".join(quoting.FILTERS)
    bare = [text for text in expressions if not re.search(rf"\|\s*({filters})(\(.*\))?\s*$", text)]
    assert [text for text in bare if not re.match(r"\s*(shell\.(output_of|wrapper|ending)|ending)\(", text)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_contains_no_arithmetic_and_no_long_line(path: Path) -> None:
    text = path.read_text()
    code = [re.sub(r'"[^"]*"', "", each) for each in re.findall(r"\{[{%][-+]?(.*?)-?[%}]\}", text, re.DOTALL)]
    assert [each for each in code if re.search(r"[*/+]|\w - ", each)] == []
    # The script computes values that depend on the number of nodes when the job runs.
    assert [each for each in re.findall(r"\$\(\((\w*)", text) if not each.startswith(("SLURM_JOB_", "WORLD_"))] == []
    assert [line for line in text.splitlines() if len(line) > 120] == []


LIMITS = {"single": 40, "ddp_1node": 42, "ddp_4node": 50, "ddp_4node.simple": 36}
INLINED_FILES = [(ROOT / "templates/shell" / name).read_text() for name in ("history.sh", "restart.sh")]
INLINED = {"restart.torchrun.standalone": sum(text.count("\n") for text in INLINED_FILES)}
"""Lines of the shell files that a standalone script contains in whole."""


@pytest.mark.parametrize("case", golden.CASES)
def test_a_script_fits_on_a_screen(case: str) -> None:
    lines = golden.script(case).splitlines()
    assert len(lines) - INLINED.get(case, 0) <= LIMITS.get(case, 115)
    long = [line for line in lines if len(line) > 120]
    # A single word of a command may be longer than a line.
    assert [line for line in long if len(shlex.split(line.strip("# \\"))) != 1] == []


SAMPLE = {"int": 7, "str": "marker", "bool": True}


@pytest.mark.parametrize("name", Resources.__struct_fields__)
def test_every_option_reaches_the_script(name: str) -> None:
    values: dict[str, object] = {
        "time": "0:07:00", "time_min": "0:07:00", "delay_boot": 7, "mem": "7G", "mem_per_cpu": "7G",
        "mem_per_gpu": "7G", "tmp": "7G", "nodes": 7, "ntasks": 7, "signal": "USR1@7", "array": "0-7",
        "open_mode": "truncate",
        "dependency": "afterok:7", "begin": "now+7", "distribution": "cyclic", "mail_type": "END", "wait_all_nodes": 1,
        "nice": 7, "exclusive": "user", "kill_on_invalid_dep": "yes", "deadline": "now+7", "extra_node_info": "7:7:7",
        "gres": "gpu:7", "export": "ALL", "get_user_env": True, "switches": "7", "hint": "nomultithread",
        "gpu_bind": "none", "gres_flags": "enforce-binding", "mem_bind": "none", "tres_bind": "gres/gpu:none",
        "profile": "task", "propagate": "NONE", "acctg_freq": "task=7", "cpu_freq": "high", "gpu_freq": "high",
        "oom_kill_step": 1,
    }  # fmt: skip
    field = str(Resources.__annotations__[name])
    plain = True if "bool" in field else 7 if "Annotated" in field else "7"
    value = values.get(name, plain)
    settings: dict[str, object] = {"resources.ntasks_per_node": 1, f"resources.{name}": value}
    settings |= {"layout.global_batch": 63}
    settings |= {"resources.nodes": 7} if name == "ntasks" else {}
    # Otherwise the script requests it per node.
    settings |= {"resources.gpu_bind": "none"} if name == "gpus_per_task" else {}
    job: str | Job = "single"
    if name == "ntasks_per_gpu":
        job, settings = Job(name="job", command=("true",)), {"resources.gpus_per_node": 1, f"resources.{name}": 7}
    text = golden.render_job(job, "slurm", settings)
    option = f"#SBATCH --{name.replace('_', '-')}"
    expected = option if value is True else f"{option}={value}"
    assert expected in text.splitlines()


def test_an_unknown_value_in_a_template_is_an_error_with_its_line(project: Path) -> None:
    (project / "templates" / "mine.sbatch.j2").write_text("#!/bin/bash\n\n{{ nodez | sh }}\n")
    with pytest.raises(TemplateError, match=r"'nodez' is undefined \(mine.sbatch.j2, line 3\)"):
        render("single", "local", set={"template": "mine"}, root=project)


def test_a_broken_template_is_an_error_with_its_line(project: Path) -> None:
    (project / "templates" / "mine.sbatch.j2").write_text("#!/bin/bash\n{% if %}\n")
    with pytest.raises(TemplateError, match="line 2"):
        render("single", "local", set={"template": "mine"}, root=project)


def test_a_template_that_extends_a_missing_one_is_an_error(project: Path) -> None:
    (project / "templates" / "mine.sbatch.j2").write_text('{% extends "gone.j2" %}')
    with pytest.raises(TemplateError, match=r"includes gone\.j2"):
        render("single", "local", set={"template": "mine"}, root=project)


def test_a_missing_template_suggests_a_near_one(project: Path) -> None:
    with pytest.raises(SpecError, match="no template 'dpp'") as caught:
        render("single", "local", set={"template": "dpp"}, root=project)
    assert caught.value.remedy == "did you mean ddp?"


@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        (b"#!/bin/bash\n{{ (nodes + name) | sh }}\n", "TypeError: .*, line 2\\)", "fix the template"),
        (b"\n\n{{ (nodes // 0) | sh }}\n", "ZeroDivisionError: .*, line 3\\)", "fix the template"),
        (b"{% extends 'mine.sbatch.j2' %}", "RecursionError: .*", "give the template another name"),
        (b"# caf\xe9\n", "UnicodeDecodeError: .*", "save the template as UTF-8"),
        (b"{% extends 'base.sbatch.j2' %}", "Required block 'launch' not found .*", "fill the block 'launch'"),
    ],
)
def test_any_error_in_a_template_names_the_template(project: Path, text: bytes, found: str, remedy: str) -> None:
    (project / "templates" / "mine.sbatch.j2").write_bytes(text)
    with pytest.raises(TemplateError, match=r"^template mine cannot be rendered\n") as caught:
        render("single", "local", set={"template": "mine"}, root=project)
    assert re.fullmatch(found, caught.value.found or "")
    assert remedy in (caught.value.remedy or "")


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("text", [LOOP, "{{ (9 ** (9 ** 9)) | comment }}"])
def test_a_template_that_does_not_end_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("hpc_kit.script.render._CPU_SECONDS", 0.5)
    (project / "templates" / "mine.sbatch.j2").write_text(f"#!/bin/bash\n\n{text}\n")
    with pytest.raises(TemplateError, match=r"^template mine cannot be rendered\n") as caught:
        render("single", "local", set={"template": "mine"}, root=project)
    assert re.fullmatch(r"TimeoutError: .* 0\.5 s of CPU \(mine\.sbatch\.j2, line 3\)", caught.value.found or "")
    assert "a loop or a repeated text in it does not end" in (caught.value.remedy or "")
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_a_template_is_rendered_in_another_thread_as_in_the_main_one(project: Path) -> None:
    expressions = "'abc'.find('c', 0, 2000000), 0.5**2000000"
    (project / "templates" / "mine.sbatch.j2").write_text(f"# {{{{ ({expressions}) | comment }}}}\n")
    texts: list[str] = []

    def render_text() -> None:
        texts.append(render("single", "local", set={"template": "mine"}, root=project))

    render_text()
    thread = threading.Thread(target=render_text)
    thread.start()
    thread.join()
    assert texts == ["# 2 0.0\n"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "{{ name }}",
        "{{ name | upper }}",
        "{{ name.upper() }}",
        "{{ (name | sh) ~ name }}",
        "{{ name if array else '' | sh }}",
    ],
)
def test_a_value_without_a_quoting_filter_is_refused(project: Path, text: str) -> None:
    head = "{% extends 'base.sbatch.j2' %}\n{% block launch %}\n{% include launch_file %}\necho "
    template = project / "templates" / "mine.sbatch.j2"
    template.write_text(f"{head}{text}\n{{% endblock %}}\n")
    changes = {"template": "mine", "name": "a b; touch PWNED"}
    with pytest.raises(TemplateError, match=r"in template mine\.sbatch\.j2, line 4 ends in no filter"):
        render("single", "local", set=changes, root=project)
    template.write_text(head + "{{ name | sh if name else nodes | sh }}\n{% endblock %}\n")
    assert "echo 'a b; touch PWNED'\n" in render("single", "local", set=changes, root=project)


@pytest.mark.parametrize(
    "code",
    [
        "cycler.__init__.__globals__.os.popen(MARK).read()",
        "run_files.os.popen(MARK).read()",
        "run_files.write_whole.__globals__",
        "environment.__class__.__mro__",
        "''.__class__.__mro__[1].__subclasses__()",
        "lipsum.__globals__['os'].popen(MARK).read()",
        "('{0.__class__.__mro__}'.format(environment))",
        "(name | attr('__class__'))",
        "self._TemplateReference__context",
        "run_files.rank_log.__globals__",
        "shell_code.clear()",
    ],
)
def test_a_template_runs_no_code(project: Path, code: str) -> None:
    mark = project / "ran"
    code = code.replace("MARK", f"'touch {mark}'")
    (project / "templates" / "mine.sbatch.j2").write_text(f"#!/bin/bash\n# {{{{ {code} | comment }}}}\n")
    with pytest.raises(TemplateError, match=r"line 2"):
        render("single", "local", set={"template": "mine"}, root=project)
    assert not mark.exists()


def test_a_template_may_use_macros_filters_and_methods_of_texts(project: Path) -> None:
    text = "{% macro twice(x) %}{{ (x ~ x) | sh }}{% endmacro %}# {{ name.upper() | comment }} {{ twice('a') }}"
    (project / "templates" / "mine.sbatch.j2").write_text(
        text + "{% for i in range(2) %}{{ loop.cycle('x', 'y') | sh }}{% endfor %}"
    )
    assert render("single", "local", set={"template": "mine"}, root=project) == "# SINGLE aaxy"


def test_the_base_alone_launches_nothing_and_is_refused(project: Path) -> None:
    with pytest.raises(TemplateError, match="Required block 'launch' not found"):
        render("single", "local", set={"template": "base"}, root=project)


def test_a_launch_block_without_a_status_still_ends_the_script(project: Path) -> None:
    for program, status in (("true", 0), ("(exit 4)", 4)):
        text = f"{{% extends 'base.sbatch.j2' %}}\n{{% block launch %}}\n{program}\n{{% endblock %}}\n"
        (project / "templates" / "mine.sbatch.j2").write_text(text)
        script = render("single", "slurm", set={"template": "mine"}, root=project)
        environ = {**os.environ, "SLURM_JOB_ID": "7"}
        assert subprocess.run(["bash", "-c", script], env=environ).returncode == status


def test_rendering_works_with_a_full_cache_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def raise_disk_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("jinja2.FileSystemBytecodeCache.dump_bytecode", raise_disk_full)
    assert golden.script("single") == (golden.SCRIPTS / "single.sbatch").read_text()


def test_rendering_works_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", raise_no_home)
    assert golden.script("single") == (golden.SCRIPTS / "single.sbatch").read_text()


def test_a_removed_current_folder_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SpecError, match="the current folder is gone"):
        render("single", "local")


def read_header(script: str, label: str) -> str:
    """Return the value of a line of the header. A backslash continues the line."""
    found = re.search(rf"^# {label} +((?:.*\\\n# {{10,}})*.*)$", script, re.MULTILINE)
    assert found is not None
    return re.sub(r"\\\n# +", "", found[1])


def split_with_bash(command: str) -> list[str]:
    """Return the words into which bash splits a command line copied from a header."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_the_command_that_reproduces_a_script_can_be_copied(text: str) -> None:
    changes: dict[str, object] = {"env.A": text, "resources.requeue": True, "resources.nodes": 2}
    script = golden.render_job("single", "slurm", {**golden.PYTHON, **changes})
    expected = ["cluster.python=.venv/bin/python", f"env.A={text}", "resources.requeue=true", "resources.nodes=2"]
    assert split_with_bash(read_header(script, "again")) == [
        *("hpc-kit", "render", "single", "--cluster", "slurm"),
        *(word for each in expected for word in ("--set", each)),
    ]


def test_the_option_standalone_precedes_the_program_in_the_printed_command() -> None:
    command = ("hpc-kit", "render", "--cluster", "slurm", "--", "python", "t.py", "--x")
    resolved = resolve(load.load("single", "slurm", root=ROOT), root=ROOT, render_command=command)
    script = render_resolved(resolved, standalone=True, root=ROOT)
    assert read_header(script, "again") == "hpc-kit render --cluster slurm --standalone -- python t.py --x"


@pytest.mark.parametrize(
    ("changes", "submit"),
    [
        ({}, "mkdir -p runs/x && sbatch x.sbatch"),
        ({"resources.chdir": "my place"}, "mkdir -p 'my place/runs/x' && sbatch x.sbatch"),
        ({"resources.chdir": "there", "cluster.runs": "/scratch"}, "mkdir -p /scratch/x && sbatch x.sbatch"),
        ({"resources.output": "logs/%x/100%%/%j.out"}, "mkdir -p logs/x/100% && sbatch x.sbatch"),
        ({"resources.output": "%j/out", "resources.error": "%j.err"}, "sbatch x.sbatch"),
        ({"resources.output": "/dev/null", "launch.output": "ranks/%t"}, "mkdir -p ranks && sbatch x.sbatch"),
        ({"name": "-x"}, "mkdir -p runs/-x && sbatch ./-x.sbatch"),
    ],
)
def test_the_header_names_the_folders_that_sbatch_needs(changes: dict[str, object], submit: str) -> None:
    script = golden.render_job("single", "slurm", {**golden.PYTHON, "name": "x", **changes})
    assert read_header(script, "submit") == submit


@pytest.mark.parametrize("output", [{}, {"launch.output": "ranks/%t"}])
def test_stderr_of_the_tasks_may_have_its_own_file(output: dict[str, str]) -> None:
    script = golden.render_job("single", "slurm", {**golden.PYTHON, **output, "launch.error": "ranks/%t.err"})
    assert " --error=ranks/%t.err --open-mode=append" in script


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(name=NAMES.filter(lambda name: name not in {".", ".."}))
@example(name="100%j %%A%x%")
def test_a_job_name_reads_back_from_job_name_and_output(name: str) -> None:
    script = golden.render_job("single", "slurm", {**golden.PYTHON, "name": name})
    read = dict(options(script))
    assert read["job-name"] == name
    assert expand_pattern(read["output"] or "", name=name, job_id="7") == f"runs/{name}/7.log"


def test_rendering_works_with_an_unwritable_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert golden.script("single") == (golden.SCRIPTS / "single.sbatch").read_text()


@given(TEXT)
def test_a_directive_reads_back_unchanged(text: str) -> None:
    assert options(f"#!/bin/bash\n#SBATCH --comment={directive_value(text)}\n") == [("comment", text)]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_a_shell_word_reads_back_unchanged(text: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {shell_word(text)}"], capture_output=True, check=True)
    assert done.stdout == text.encode()


@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "\x1b[1m"])
def test_a_directive_refuses_control_characters(text: str) -> None:
    with pytest.raises(TemplateError):
        directive_value(text)


def test_a_shell_word_refuses_a_nul_byte() -> None:
    with pytest.raises(TemplateError):
        shell_word("a\0b")


def test_a_comment_stays_on_its_line() -> None:
    assert comment_text("a\nrm -rf /") == "a rm -rf /"


@settings(max_examples=40, deadline=None)
@given(text=st.text("ab -/", max_size=300))
def test_a_long_comment_continues_in_the_lines_below(text: str) -> None:
    lines = f"# {comment_text(text, 'note      ')}".split("\n")
    assert all(line.startswith("# ") for line in lines)
    assert all(len(line) <= 120 or " " not in line[12:] for line in lines)
    assert "".join(line[12:] for line in lines).replace(" ", "") == text.replace(" ", "")


def test_a_simple_script_has_the_srun_line_alone() -> None:
    script = golden.script("ddp_4node.simple")
    assert re.search(
        r"^srun .*\n  --output=\S+ --open-mode=append \\\n  \S+python jobs/train/ddp.py", script, re.MULTILINE
    )
    assert not re.search("first-failure|trap|HPC_KIT_SHELL|HPC_KIT_SIGNALS", script)


@pytest.mark.parametrize(
    ("job", "standalone", "changes", "error"),
    [
        ("ddp_mpi_backend", True, {}, "a standalone script has no backend mpi"),
        ("bench_comm", True, {}, "a standalone script cannot run a program of hpc_kit"),
        ("ray_4node", False, {}, "a simple script cannot start Ray"),
        ("ddp_4node", False, {"restart": {}}, "a simple script cannot start its job again"),
    ],
)
def test_a_variant_that_a_job_cannot_have_is_refused(
    job: str, standalone: bool, changes: dict[str, object], error: str
) -> None:
    with pytest.raises(SpecError, match=error):
        render(job, "slurm", set=changes, standalone=standalone, simple=not standalone, root=ROOT)


def test_a_standalone_script_keeps_backend_and_timeout_and_torchs_messages() -> None:
    changes: dict[str, object] = {"launch.backend": "gloo", "launch.timeout": 60}
    script = render("ddp_4node", "slurm", set=changes, standalone=True, root=ROOT)
    assert "export HPC_KIT_BACKEND=gloo\nexport HPC_KIT_TIMEOUT=60\n" in script
    assert "LOG_LEVEL" not in script


def test_a_job_that_submits_a_job_passes_on_nothing_that_its_script_exports(project: Path) -> None:
    changes: dict[str, object] = {
        "restart": {},
        "watchdog": {"action": "stop", "timeout": 900},
        "launch.backend": "gloo",
    }
    changes |= {"launch.timeout": 60, "layout.tp": 2, "command": ["python", "mine.py"]}
    text = render("ddp_4node", "local", set=changes) + render("ddp_4node", "local", set=changes, standalone=True)
    lines = [line for line in text.splitlines() if "export " in line]
    exported = {name for line in lines for name in re.findall(r"(?<![${])HPC_KIT_\w+", line)}
    assert {"HPC_KIT_STOP_SIGNAL", "HPC_KIT_STOP_CODE", "HPC_KIT_WATCHDOG_TIMEOUT", "HPC_KIT_SIGNALS"} <= exported
    assert submit_environment(dict.fromkeys({*exported, "SLURM_JOB_ID"}, "1")) == {}
