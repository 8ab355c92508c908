"""The edits of findings change exactly what is wrong, and leave a script without those findings."""

from __future__ import annotations

import pytest

from hpc_kit.check.batch_script import BatchScript, Site
from hpc_kit.check.rules import check
from hpc_kit.check.text_edits import Edit, apply_edits, format_diff
from hpc_kit.slurm.versions import SlurmVersion

HEAD = "#!/bin/bash\n"


def fix(text: str, code: str) -> str:
    findings = [
        finding for finding in check(BatchScript(text, site=Site(version=SlurmVersion(22, 5)))) if finding.code == code
    ]
    assert any(finding.edits for finding in findings), "no edit"
    return apply_edits(text, [edit for finding in findings for edit in finding.edits])


EDITS = [
    ("KIT101", "#SBATCH -N1\nls\n", "#!/bin/bash\n#SBATCH -N1\nls\n"),
    ("KIT102", "#!/bin/bash\r\nls\r\n", "#!/bin/bash\nls\n"),
    ("KIT121", "#!/bin/sh\nset -o pipefail\n", HEAD + "set -o pipefail\n"),
    *(
        (code, HEAD + before, HEAD + after)
        for code, before, after in [
            ("KIT103", "#SBACTH -N1\n", "#SBATCH -N1\n"),
            ("KIT104", "  #SBATCH -N1\nls\n", "#SBATCH -N1\nls\n"),
            ("KIT104", "#SBATCH -n1\nls\n#SBATCH -N1\n", "#SBATCH -n1\n#SBATCH -N1\nls\n"),
            ("KIT107", "srun python t.py \\  \n  --a 1\n", "srun python t.py \\\n  --a 1\n"),
            ("KIT108", 'setenv A "b c"\n', 'export A="b c"\n'),
            ("KIT110", "srun \u2013n 8 python t.py\n", "srun -n 8 python t.py\n"),
            ("KIT120", "lr = 0.1\npython t.py $lr\n", "lr=0.1\npython t.py $lr\n"),
            ("KIT120", "$LR=0.1\n", "LR=0.1\n"),
            ("KIT128", 'cd "~/x"\n', 'cd "$HOME/x"\n'),
            ("KIT205", "#SBATCH -c 8\nsrun python t.py\n", "#SBATCH -c 8\nsrun --cpus-per-task=8 python t.py\n"),
            ("KIT302", "export MASTER_PORT=29500\n", "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\n"),
            ("KIT304", "#SBATCH -n4\nMASTER_ADDR=n1\nsrun ./t\n", "#SBATCH -n4\nexport MASTER_ADDR=n1\nsrun ./t\n"),
            ("KIT312", "export CUDA_LAUNCH_BLOCKING=1\npython t.py\n", "python t.py\n"),
            ("KIT413", "#SBATCH --requeue\nsrun ./t\n", "#SBATCH --requeue\n#SBATCH --open-mode=append\nsrun ./t\n"),
            ("KIT424", "while read h; do\nssh $h ls\ndone <f\n", "while read h; do\nssh -n $h ls\ndone <f\n"),
            (
                "KIT506",
                "#SBATCH --gres=gpu:1\napptainer exec a.sif python t.py\n",
                "#SBATCH --gres=gpu:1\napptainer exec --nv a.sif python t.py\n",
            ),
        ]
    ),
]


@pytest.mark.parametrize(("code", "before", "after"), EDITS)
def test_an_edit_fixes_its_finding(code: str, before: str, after: str) -> None:
    assert fix(before, code) == after
    assert code not in [finding.code for finding in check(BatchScript(after))]


def test_an_edit_at_another_text_has_no_effect() -> None:
    assert apply_edits("abc\n", [Edit(1, 2, "x", "y")]) == "abc\n"
    assert apply_edits("abc\n", [Edit(1, 2, "b", "xyz"), Edit(1, 2, "bc", "q")]) in {"axyzc\n", "aq\n"}


def test_the_first_host_replaces_a_cut_node_list() -> None:
    text = HEAD + "#SBATCH -N2\nexport MASTER_ADDR=${SLURM_NODELIST%%,*}\nsrun python t.py\n"
    assert 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' in fix(text, "KIT305")


def test_a_diff_names_both_sides() -> None:
    diff = format_diff("a\nb\n", "a\nc\n", "x.sbatch")
    assert diff.splitlines()[:2] == ["--- x.sbatch", "+++ x.sbatch (fixed)"]
    assert {"-b", "+c"} <= {*diff.splitlines()}
    assert format_diff("a\n", "a\n", "x") == ""


def test_other_edits_apply_together_with_those_of_line_breaks() -> None:
    text = "#!/bin/bash\n#SBATCH -n1\nls\n#SBATCH -N1\n"
    edits = [edit for finding in check(BatchScript(text.replace("\n", "\r\n"))) for edit in finding.edits]
    assert apply_edits(text.replace("\n", "\r\n"), edits) == "#!/bin/bash\n#SBATCH -n1\n#SBATCH -N1\nls\n"


def test_a_text_that_keeps_its_line_breaks_is_not_edited_by_halves() -> None:
    move = [Edit(2, 1, "b\n", ""), Edit(1, 1, "", "b\n")]
    assert apply_edits("a\r\nb\r\n", [*move, Edit(1, 1, "a", "c")]) == "c\r\nb\r\n"


def test_texts_inserted_at_one_place_keep_their_order() -> None:
    assert apply_edits("c", [Edit(1, 1, "", "b"), Edit(1, 1, "", "a"), Edit(1, 1, "c", "d")]) == "bad"


def test_a_diff_shows_line_breaks() -> None:
    assert format_diff("a\r\n", "a\n", "x").splitlines()[-2:] == ["-a^M", "+a"]
