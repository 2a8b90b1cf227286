"""What `paceline show` prints of runs that are made up: it fits, and nothing of it acts on a terminal."""

import re

from hypothesis import given
from hypothesis import strategies as st

from paceline._commands import cli_output, run_sections
from paceline._view import model
from paceline._view.model import Attempt, RunSnapshot, Summary, Worker

ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
texts = st.text(st.one_of(st.characters(), st.sampled_from("ab \x1b[2J\n漢")), max_size=200)
numbers = st.floats(0, 1e6)


def summary(**more):
    fixed = {"id": ".", "name": "run", "path": "/runs/run", "kind": "run", "state": "running", "num_workers": 2}
    return Summary(**{**fixed, "began_at": 1e9, "updated_at": 1e9 + 50, "num_reports": 3, **more})


def test_the_time_left_is_shown_where_it_is_known():
    shown = "\n".join(run_sections.format_head(summary(progress=0.5, left_s=110.0), 1e9 + 60))
    assert "progress    50%, 1:50 left, 3 reports, 2 workers" in shown
    assert " left" not in "\n".join(run_sections.format_head(summary(progress=0.5), 1e9 + 60))


def test_a_run_that_hangs_is_shown_with_its_verdict_devices_and_stages():
    hangs = (
        model.ShownHang(rank=1, verdict="stands in all_reduce", action="warn", at=1e9 + 9, stacks="logs/stacks.txt"),
        model.ShownHang(rank=0, verdict="reads a file", action="restart", at=1e9, passed_after_s=4.0),
    )
    gpus = (model.ShownGpu(0, 10**10, 8 * 10**10, 0.87),)
    worker = Worker(
        rank=0, state="hangs", pid=7, host="gpu-box", num_reports=3, cpu=0.93, rss_bytes=2 * 10**9, gpus=gpus
    )
    times = {"busy_s": 9.0, "waited_for_input_s": 1.0, "waited_for_room_s": 0.0}
    stage = model.ShownStage(dataset="train", name="decode", num_rows=1000, num_bytes=10**6, limits=True, **times)
    times = {"copy_s": 0.002, "write_s": 1.3, "hash_s": 0.9, "sync_s": 0.0123, "commit_s": 0.0005}
    speeds = {"disk_bytes_per_s": 9e8, "best_bytes_per_s": 1.1e9}
    saves = model.SaveBreakdown(num_saves=3, num_bytes=1_200_000_000, **times, **speeds)
    verdict, best = "rank 1 waits for rank 0 in all_reduce", model.BestMetric("loss", "min", 0.5, 2)
    detail = RunSnapshot(
        summary=summary(hang=verdict, progress=0.25, left_s=150.0, steps_per_s=2.0, epochs_per_s=0.01, best=best),
        attempts=(Attempt(number=1, began_at=1e9, size=2, hangs=hangs, workers=(worker,)),),
        stages=(stage,),
        limited_by="decode",
        spent=model.TimeBreakdown(wall_s=50.0, data_s=30.0, compute_s=20.0),
        saves=saves,
    )
    text = run_sections.format_run(detail, 1e9 + 60)
    for said in (
        "run  running",
        "25%, 2:30 left, 3 reports, 2 workers",
        "2 reports/s",
        "hang        rank 1 waits for rank 0 in all_reduce",
        "hang of rank 1, told: stands in all_reduce",
        "stacks in logs/stacks.txt",
        "hang of rank 0, restarted: reads a file (passed after 4 s)",
        "10 GB 87%",
        "gpu-box pid 7",
        "limited by decode",
        "*  train decode",
        "data        30 s  60%  ########################",
        "  COPY  WRITE    HASH     SYNC  COMMIT  WRITTEN",
        "  2 ms  1.3 s  900 ms  12.3 ms  0.5 ms   1.2 GB",
        "  mean of 3 saves\n  disk 900 MB/s, 1.1 GB/s in the fastest save; see also `paceline doctor PATH`",
    ):
        assert said in text, f"{said!r} is not in\n{text}"


def test_of_many_workers_those_in_trouble_and_of_many_checkpoints_the_newest_and_the_best_are_shown():
    workers = tuple(Worker(rank=rank, state="failed" if rank == 90 else "running") for rank in range(100))
    attempt = Attempt(number=1, began_at=0.0, size=100, workers=workers)
    text = "\n".join(run_sections.format_workers([attempt]))
    assert "    90  failed" in text
    assert "and 84 more" in text
    fixed = {"attempt": 1, "path": "", "num_bytes": 1, "at": 0.0, "status": "COMMITTED"}
    made = tuple(
        model.ShownCheckpoint(name=f"c{seq}", seq=seq, kept=seq != 30, is_best=seq == 3, is_latest=seq == 29, **fixed)
        for seq in range(31)
    )
    lines = "\n".join(
        run_sections.format_checkpoint_section(RunSnapshot(summary=summary(), checkpoints=made))
    ).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["c3", *(f"c{seq}" for seq in range(22, 30))]
    assert lines[0] == "  22 older ones"


failures = st.builds(
    model.ShownFailure, rank=st.integers(0, 9), kind=texts, message=texts, at=numbers, is_cause=st.booleans()
)
attempts = st.builds(
    Attempt,
    number=st.integers(1, 99),
    began_at=numbers,
    ended_at=st.none() | numbers,
    size=st.integers(1, 9),
    resumed_from=st.none() | texts,
    ending=texts,
    failures=st.lists(failures, max_size=4).map(tuple),
)
details = st.builds(
    RunSnapshot,
    summary=st.builds(
        summary, name=texts, path=texts, failure=st.none() | texts, metrics=st.dictionaries(texts, texts, max_size=3)
    ),
    attempts=st.lists(attempts, max_size=3).map(tuple),
    config=st.dictionaries(texts, texts | st.integers() | st.dictionaries(texts, texts, max_size=2), max_size=3),
    limited_by=st.none() | texts,
)


@given(details)
def test_whatever_a_run_says_it_fits_80_columns_and_acts_on_no_terminal(detail):
    for line in run_sections.format_run(detail, 1e9).split("\n"):
        assert not ACTED_UPON.search(line), line
        # A word that is longer than the line stands on a line of its own.
        assert cli_output.display_width(line) <= 80 or " " not in line.strip(), line
