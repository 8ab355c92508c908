"""Files of a project that have the name of a module of Python or of a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.why.test_explain import STEPS, why

PACKAGES = "/u/env/lib/python3.11/site-packages"
LIBRARY = "/usr/lib/python3.11"


def traceback(error: str, *files: str) -> str:
    frames = "".join(f'  File "{file}", line {at}, in <module>\n    import this\n' for at, file in enumerate(files, 4))
    return f"Traceback (most recent call last):\n{frames}{error}\n"


@pytest.mark.parametrize(
    ("error", "files", "path", "confidence"),
    [
        (
            "AttributeError: module 'token' has no attribute 'EXACT_TOKEN_TYPES'",
            ["/u/p/fit.py", f"{PACKAGES}/numpy/__init__.py", f"{LIBRARY}/tokenize.py"],
            "/u/p/token.py",
            "certain",
        ),
        (
            "ImportError: cannot import name 'SimpleQueue' from 'queue' (/u/p/queue.py)",
            ["/u/p/fit.py", f"{PACKAGES}/torch/__init__.py", f"{LIBRARY}/concurrent/futures/process.py"],
            "/u/p/queue.py",
            "certain",
        ),
        (
            (
                "AttributeError: partially initialized module 'types' has no attribute 'FunctionType' "
                "(most likely due to a circular import)"
            ),
            ["/u/p/fit.py", f"{LIBRARY}/enum.py", "/u/p/types.py", "/u/p/fit.py"],
            "/u/p/types.py",
            "certain",
        ),
        (
            (
                "AttributeError: partially initialized module 'torch' has no attribute 'randn' "
                "(most likely due to a circular import)"
            ),
            ["/u/p/torch.py", "/u/p/torch.py"],
            "/u/p/torch.py",
            "certain",
        ),
        ("AttributeError: module 'random' has no attribute 'shuffle'", ["/u/p/fit.py"], "/u/p/random.py", "certain"),
        ("AttributeError: module 'numpy' has no attribute 'ndarray'", ["/u/p/fit.py"], "look in /u/p", "likely"),
        (
            (
                "AttributeError: module 'random' has no attribute 'randint' (consider renaming '/u/p/random.py' since "
                "it has the same name as the standard library module named 'random')"
            ),
            ["/u/p/fit.py"],
            "/u/p/random.py",
            "certain",
        ),
    ],
)
def test_the_file_is_named(tmp_path: Path, error: str, files: list[str], path: str, confidence: str) -> None:
    verdict = why(tmp_path, slurm__7_log=traceback(error, *files), sacct_txt="JobID|State|ExitCode\n7|FAILED|1:0\n")
    assert (verdict.class_, verdict.confidence) == ("shadowed-module", confidence)
    assert path in verdict.cause


@pytest.mark.parametrize(
    ("error", "files"),
    [
        # Two modules of the project.
        (
            ("ImportError: cannot import name 'Net' from partially initialized module 'model' "
            "(most likely due to a circular import) (/u/p/model.py)"),
            ["/u/p/fit.py", "/u/p/model.py", "/u/p/loss.py"],
        ),
        # An attribute that Python has removed, and one that it did not have yet.
        ("AttributeError: module 'inspect' has no attribute 'getargspec'", ["/u/p/fit.py", f"{PACKAGES}/old/a.py"]),
        ("AttributeError: module 'math' has no attribute 'lcm'", ["/u/p/fit.py", f"{PACKAGES}/new/a.py"]),
        # A package that is too old.
        ("AttributeError: module 'torch' has no attribute 'float8_e4m3fn'", ["/u/p/fit.py", f"{PACKAGES}/te/a.py"]),
        (("ImportError: cannot import name 'is_flash_attn' from 'transformers' (/u/env/lib/python3.11/site-packages/"
         "transformers/__init__.py)"), ["/u/p/fit.py"]),
        # A package that its user edits.
        (
            "ImportError: cannot import name 'Foo' from 'accelerate' (/u/src/accelerate/src/accelerate/__init__.py)",
            ["/u/p/fit.py", "/u/src/accelerate/src/accelerate/__init__.py"],
        ),
        # The module of Python itself.
        (f"ImportError: cannot import name '_pattern_type' from 're' ({LIBRARY}/re/__init__.py)", ["/u/p/fit.py"]),
        # A worker of a pool.
        (
            "AttributeError: module 'collections' has no attribute 'Mapping'",
            ["/u/p/fit.py", f"{LIBRARY}/multiprocessing/pool.py"],
        ),
        # A module of the project, on purpose.
        ("AttributeError: module 'platform' has no attribute 'detect_gpu'", ["/u/p/fit.py", "/u/p/setup_job.py"]),
        ("ImportError: cannot import name 'build' from 'datasets' (/u/p/datasets/__init__.py)", ["/u/p/fit.py"]),
    ],
)  # fmt: skip
def test_other_errors_about_modules_are_no_shadows(tmp_path: Path, error: str, files: list[str]) -> None:
    verdict = why(tmp_path, slurm__7_log=STEPS + traceback(error, *files))
    assert verdict.class_ != "shadowed-module", verdict.cause
