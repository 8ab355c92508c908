"""The report's page: nothing from elsewhere, nothing unescaped, every run and bench in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from hpc_kit.bench.results import encode_result
from hpc_kit.cli.report import command
from hpc_kit.report import run_section
from hpc_kit.report.page import Picture, ReportTable, ReportText, Section, markup_code, render_page
from hpc_kit.runs.logs import read_tail
from tests.bench import papers

EVIL = "</pre><script>alert(1)</script><img src=http://x.example/y onerror='z'>"
VOID = {"meta", "link", "br", "img", "hr", "input", "use", "path"}


class Page(HTMLParser):
    """What is in a page: each element with its attributes, what was left open, the text of a kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append((self.open[-1] if self.open else "", data))

    def texts_of(self, tag: str) -> str:
        return "".join(data for where, data in self.words if where == tag)


def section(word: str = EVIL) -> Section:
    return Section(
        name=word,
        title=word,
        source="a folder",
        headline=word,
        failed=True,
        failure=ReportText(word, word),
        facts=[(word, word)],
        pictures=[Picture(word, '<svg viewBox="0 0 1 1"><path id="a"/></svg>')],
        tables=[ReportTable(word, [word, "number"], [[word, "1"]])],
        notes=[word],
        texts=[ReportText(word, word), ReportText(word, word, shown=True)],
    )


def test_any_content_of_a_log_is_shown_as_text() -> None:
    text = render_page([section(), section()], EVIL)
    found = Page(text)
    assert found.open == []
    assert not {"script", "img", "iframe", "link", "object"} & {tag for tag, _ in found.elements}
    assert found.texts_of("pre") == EVIL * 6
    assert "default-src 'none'" in text


def test_the_page_loads_no_resource_and_every_id_is_unique() -> None:
    found = Page(render_page([section("a run"), section("another")], "now"))
    outside = [
        value for _, attributes in found.elements for name, value in attributes.items() if name in {"src", "href"}
    ]
    assert outside == ["#s1", "#s2"]
    ids = [attributes["id"] for tag, attributes in found.elements if "id" in attributes and tag != "path"]
    assert len(ids) == len(set(ids))


def test_the_page_is_readable_by_a_screen_reader_and_in_dark_mode() -> None:
    text = render_page([section("a run"), section("another")], "now")
    found = Page(text)
    tags = [tag for tag, _ in found.elements]
    assert (tags.count("h1"), tags.count("h2"), tags.count("main"), tags.count("nav")) == (1, 2, 1, 1)
    assert dict(found.elements)["html"] == {"lang": "en"}
    assert all(attributes.get("aria-label") for tag, attributes in found.elements if tag == "figure")
    assert all(attributes.get("scope") == "col" for tag, attributes in found.elements if tag == "th")
    assert tags.count("caption") == tags.count("table")
    assert "prefers-color-scheme: dark" in text
    light, dark = (set(re.findall(r"(--\w+):", part)) for part in text.split("prefers-color-scheme: dark", 1))
    assert light <= dark | {"--paper"}


def test_benches_of_one_kind_are_named_after_their_files(tmp_path: Path) -> None:
    for name in ("busy", "idle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "A.json").write_bytes(encode_result(papers.document([])))
    done = CliRunner().invoke(command, [str(tmp_path / "busy/A.json"), str(tmp_path / "idle/A.json"), "--out", "-"])
    found = Page(done.stdout)
    titles = f"Collectives: {tmp_path}/busy/A.json", f"Collectives: {tmp_path}/idle/A.json"
    assert found.texts_of("a") == found.texts_of("h2") == "".join(titles)
    assert found.texts_of("h1") == "bench comm"


def test_a_note_may_contain_code_and_lines() -> None:
    text = markup_code("`on <device>` is\nthe `whole")
    assert text == "<code>on &lt;device&gt;</code> is\nthe `whole"


def test_missing_measurements_are_listed_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "A.json").write_bytes(
        encode_result(structs.replace(papers.document([]), missing=["2 ranks", "4 ranks"]))
    )
    found = Page(CliRunner().invoke(command, [str(tmp_path / "A.json"), "--out", "-"]).stdout)
    assert "Incomplete: without 2 ranks; 4 ranks." in found.texts_of("p")


def test_a_run_folder_and_a_bench_become_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = tmp_path / "runs/train/7"
    run.mkdir(parents=True)
    (run / "end").write_text("3 1790000000.0\n")
    (run / "script.sbatch").write_text("#!/bin/bash\n# a <b> script\n")
    (run / "summary.json").write_text('{"loss_last": 2.5}')
    (run / "rank-0.log").write_text("step 1/2   loss 5.00   1 200 tokens/s\n")
    (run / "record.json").write_text(json.dumps({"job_name": "train", "environment": {"LANG": "C"}, "host": "login1"}))
    bench = tmp_path / "A.json"
    bench.write_bytes(encode_result(papers.document([papers.row(4096, [1e-3, 2e-3, 3e-3])])))
    done = CliRunner().invoke(command, [str(run), str(bench), "--out", "-"])
    found = Page(done.stdout)
    assert "train, job 7" in found.texts_of("h2")
    assert "FAILED" in found.texts_of("p")
    assert "# a <b> script" in found.texts_of("pre")
    assert "login1" in found.texts_of("dd")
    assert {"loss_last", "2.5", "LANG", "2 ms (1.5-2.5)"} <= {data for where, data in found.words if where == "td"}
    assert "A note." in found.texts_of("p")
    assert "pip install" in found.texts_of("p")
    assert "no plots" in done.stderr.lower()


@pytest.mark.parametrize(("name", "fault"), [("none", "no run of none"), (".", "is not a run")])
def test_a_folder_that_is_no_run_is_refused(name: str, fault: str, project: Path) -> None:
    done = CliRunner().invoke(command, [name, "--cluster", "local"])
    assert fault in str(done.exception)


def test_only_its_owner_can_read_a_page_and_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "12"
    run.mkdir()
    (run / "rank-0.log").write_text("connecting to pg://me:hunter2@db/x\n")
    Path("page.html").write_text("an earlier page")
    done = CliRunner().invoke(command, [str(run), "--out", "page.html"])
    assert done.exit_code == 0, done.output
    assert Path("page.html").stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in Path("page.html").read_text()


def test_an_unwritable_page_is_an_error(tmp_path: Path) -> None:
    bench = tmp_path / "A.json"
    bench.write_bytes(encode_result(papers.document([])))
    done = CliRunner().invoke(command, [str(bench), "--out", str(tmp_path / "no/such/page.html")])
    assert "cannot write" in str(done.exception)


def test_curves_are_drawn_from_recorded_steps(tmp_path: Path) -> None:
    steps = {"loss": [4.0, 2.0], "seconds": [0.5, 0.25], "tokens": 100, "busy": [[0.1, 0.2, 0.3]]}
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    rows = run_section.read_training_curves(tmp_path, tmp_path / "none").results
    assert [row.values for row in rows] == [
        {"seconds": 0.5, "loss": 4.0, "tokens_per_second": 200.0},
        {"seconds": 0.25, "loss": 2.0, "tokens_per_second": 400.0},
        {"busy": 0.2},
    ]


def test_many_steps_are_drawn_as_few_points(tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text(json.dumps({"loss": [1.0, 3.0] * 1000, "seconds": [1.0] * 2000}))
    rows = run_section.read_training_curves(tmp_path, tmp_path / "none").results
    assert len(rows) == run_section.MAX_POINTS
    assert rows[-1].labels == {"step": 2000}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("step 10/60   loss 3.21   5 024 tokens/s   4 % communication", {"loss": 3.21, "tokens_per_second": 5024}),
        ("Epoch: [3] Loss=1.5e-2", {"loss": 0.015}),
        ("step 3 loss 3.21 512 tokens/s", {"loss": 3.21, "tokens_per_second": 512}),
        ("step 4: 10,024 tok/s", {"tokens_per_second": 10024}),
        ("iter 7: loss 2.5, time 10ms", {"loss": 2.5}),
    ],
)
def test_curves_are_read_from_logs_of_other_programs(line: str, values: dict[str, float], tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text(f"some words, loss 9\n{line}\n")
    (row,) = run_section.read_training_curves(tmp_path, log).results
    assert row.values == pytest.approx(values)


@pytest.mark.slow
def test_reading_a_large_log_needs_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    with log.open("wb") as file:
        file.write(b"step 1 loss 3.5\n")
        for _ in range(20):
            file.write((b"x" * 99 + b"\n") * 5000)
        file.write(b"step 2 loss 2.5\nend\n")
    tracemalloc.start()
    rows, end = run_section.read_training_curves(tmp_path, log).results, read_tail(log, 200_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row.labels["step"] for row in rows] == [1, 2]
    assert end.endswith("step 2 loss 2.5\nend\n")
    assert most < log.stat().st_size / 10


@pytest.mark.slow
@pytest.mark.oracle("chromium")
@pytest.mark.parametrize(("scheme", "background"), [(1, "rgb(255, 255, 255)"), (0, "rgb(23, 23, 26)")])
def test_a_browser_shows_the_page_in_light_and_dark_mode(scheme: int, background: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench = tmp_path / "A.json"
    bench.write_bytes(encode_result(papers.document([papers.row(size, [1e-3, 2e-3, 3e-3]) for size in (1024, 4096)])))
    CliRunner().invoke(command, [str(bench), "--out", str(tmp_path / "page.html")])
    # The page itself runs no script; the one that looks is put in by the test, with leave to run.
    text = (tmp_path / "page.html").read_text().replace("default-src 'none'", "script-src 'unsafe-inline'")
    look = (
        "<script>const s = getComputedStyle(document.body); document.title = [s.backgroundColor,"
        " document.querySelectorAll('figure svg').length, document.querySelector('figure svg').clientWidth > 300,"
        " document.documentElement.scrollWidth <= innerWidth].join('|')</script></body>"
    )
    (tmp_path / "look.html").write_text(text.replace("</body>", look))
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    argv += [f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", f"file://{tmp_path / 'look.html'}"]
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=120).stdout
    assert f"<title>{background}|1|true|true</title>" in printed


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/a/.venv/bin/hpc-kit", "submit", "a b"], "hpc-kit submit 'a b'"),
        (["/a/hpc_kit/__main__.py", "submit"], "hpc-kit submit"),
        (["sweep.py", "--all"], "sweep.py --all"),
    ],
)
def test_the_command_is_shown_as_it_is_typed(words: list[str], shown: str, tmp_path: Path) -> None:
    run = tmp_path / "runs/train/7"
    run.mkdir(parents=True)
    (run / "record.json").write_text(json.dumps({"job_name": "train", "command_line": words}))
    (run / "end").write_text("0 1790000000.0\n")
    found = Page(CliRunner().invoke(command, [str(run), "--out", "-"]).stdout)
    assert shown in {data for where, data in found.words if where == "dd"}
    assert (found.texts_of("h1"), found.texts_of("h2")) == ("train, job 7", "")
