"""The sentence about a hang, for each activity of the ranks."""

import msgspec
import pytest

from paceline._control.hang_diagnosis import (
    DataActivity,
    HangContext,
    RankActivity,
    diagnose_hang,
    format_ranks,
    format_stacks,
    infer_activity,
    is_debugged,
)
from paceline._control.run import PendingCheckpoint
from paceline._core.system import ProcessStatus
from paceline._engine.messages import StackFrame, StacksSampled

USER_FRAME = StackFrame("__main__", "train_fn", "train.py:41", is_user_code=True)
CONTEXT = HangContext("/storage/run")
REPORT = "paceline.train.session.report"


def library(*names):
    return tuple(
        StackFrame(module, function, f"{module}.py:1") for module, _, function in (n.rpartition(".") for n in names)
    )


def infer(below, called=""):
    return infer_activity(1, StacksSampled(1, 1, 1, (USER_FRAME, *library(*below)), called), None, "", 45.0)


@pytest.mark.parametrize(
    ("below", "called", "doing", "call"),
    [
        ((), "time.sleep", "other", "time.sleep"),
        (("queue.get", "threading.wait"), "waiter.acquire", "other", "queue.get"),
        (("torch.distributed.c10d_logger.wrapper", "torch.distributed.c10d.barrier"), "", "collective", "barrier"),
        ((), "handle.wait", "collective", "handle.wait"),
        (("torch._tensor.backward", "torch.autograd.graph._engine_run_backward"), "", "collective", "backward"),
        (("torch.nn.parallel.distributed.forward", "torch.nn.functional.linear"), "", "other", None),
        (("torch.utils.data.dataloader.__next__", "selectors.select"), "", "loader", None),
        (
            (
                "paceline.data.order.epochs._batches",
                "paceline.data.exec.message_socket.receive_messages",
                "socket.recv_fds",
            ),
            "",
            "rows",
            "",
        ),
        ((), "loss.item", "gpu", "loss.item"),
        (("torch.cuda.synchronize",), "", "gpu", "torch.cuda.synchronize"),
        ((REPORT, "paceline._worker.context.report", "threading.wait"), "", "report", ""),
        ((REPORT, "paceline._worker.context.report", "paceline._storage.commit.copy"), "", "saving", ""),
        ((REPORT, "paceline._worker.upload.wait", "threading.join"), "", "saving", ""),
        (("paceline.train.checkpoint.to_dict", "paceline._storage.retrying_store.read"), "", "storage", ""),
        (("paceline.train.collective.barrier", "paceline._worker.context.join", "threading.wait"), "", "barrier", ""),
    ],
)
def test_the_activity_of_a_rank_is_inferred_from_its_frames(below, called, doing, call):
    activity = infer(below, called)
    assert (activity.doing, activity.where) == (doing, "train.py:41 in train_fn")
    assert call is None or activity.call == call


def test_a_dataset_of_the_user_that_blocks_is_in_the_data_loader():
    frames = (
        USER_FRAME,
        *library("torch.utils.data.dataloader.__next__"),
        StackFrame("data", "__getitem__", "data.py:7", is_user_code=True),
    )
    activity = infer_activity(0, StacksSampled(1, 0, 1, frames, "file.read"), None, "", 45.0)
    assert (activity.doing, activity.where) == ("loader", "data.py:7 in __getitem__")


def test_a_rank_that_reads_no_rows_is_blamed_and_ranks_that_wait_for_rows_are_not():
    waiting = [rank_at(rank, "rows") for rank in range(2)]
    assert diagnose_hang(waiting, CONTEXT).sentence == (
        "ranks 0 and 1 have waited for rows of a dataset at train.py:44 in train_fn for 45 s, and nothing arrives"
    )
    asleep = rank_at(1, "other", "train.py:50 in train_fn", "time.sleep")
    diagnosis = diagnose_hang([waiting[0], asleep], CONTEXT)
    assert diagnosis.rank == 1
    assert "rank 0 waits for it for rows of a dataset" in diagnosis.sentence


def test_outside_the_users_function_there_is_no_line_to_name():
    frames = library("paceline._worker.main.work", "torch.distributed.rendezvous.init_process_group")
    activity = infer_activity(0, StacksSampled(1, 0, 1, frames), None, "", 45.0)
    assert diagnose_hang([activity], CONTEXT).sentence == (
        "rank 0 has waited in a collective (init_process_group) outside the train function for 45 s, "
        "and nothing arrives"
    )


def rank_at(rank, doing, where="train.py:44 in train_fn", call="", **more):
    return RankActivity(rank, doing, where, call, 45.0, (where,), **more)


def test_ranks_with_the_same_wait_share_one_clause():
    activities = [rank_at(rank, "collective", call="all_reduce") for rank in range(16)]
    activities[5] = rank_at(5, "other", "train.py:41 in train_fn", "time.sleep")
    assert diagnose_hang(activities, CONTEXT).sentence == (
        "rank 5 has been stuck at train.py:41 in train_fn (time.sleep) for 45 s; "
        "15 ranks (0, 1, 2, 3, ...) wait for it in a collective (all_reduce) at train.py:44 in train_fn"
    )


def test_a_collective_that_a_rank_returned_without_is_reported():
    context = HangContext("/storage/run", returned=(1,))
    assert diagnose_hang([rank_at(0, "collective", call="barrier")], context).sentence == (
        "rank 0 has waited in a collective (barrier) at train.py:44 in train_fn for 45 s, but rank 1 "
        "returned without it"
    )


def test_a_collective_that_the_others_continued_without_is_reported():
    activities = [rank_at(0, "collective", call="barrier"), rank_at(1, "other", is_standing=False)]
    assert diagnose_hang(activities, CONTEXT).sentence.endswith("for 45 s, while rank 1 continued without it")


def test_collectives_that_do_not_match_are_reported_with_all_lines():
    activities = [
        rank_at(0, "collective"),
        rank_at(1, "collective", "train.py:50 in train_fn", "barrier"),
        rank_at(2, "collective"),
    ]
    diagnosis = diagnose_hang(activities, CONTEXT)
    assert diagnosis.sentence == (
        "ranks wait for each other at places that do not match: "
        "ranks 0 and 2 have waited in a collective at train.py:44 in train_fn, "
        "rank 1 has waited in a collective (barrier) at train.py:50 in train_fn, for 45 s"
    )
    assert diagnosis.rank == 1


def test_a_report_that_only_some_ranks_make_is_reported_with_what_the_others_do():
    pending = PendingCheckpoint(5, "checkpoint_000005", 0, "train.py:44", msgspec.Raw(b"{}"))
    context = HangContext("/storage/run", (pending,), {1: 4})
    activities = [rank_at(0, "report"), rank_at(1, "collective", "train.py:50 in train_fn", "all_reduce")]
    assert diagnose_hang(activities, context).sentence == (
        "rank 0 has waited 45 s in report 5 with a checkpoint at train.py:44 in train_fn: rank 1 has made 4 and waits "
        "in a collective (all_reduce) at train.py:50 in train_fn. Every rank must call report() the "
        "same number of times"
    )


def test_a_commit_that_storage_does_not_finish_is_reported_and_a_restart_would_not_help():
    context = HangContext("/storage/run", committing=(5,))
    diagnosis = diagnose_hang([rank_at(0, "report"), rank_at(1, "report")], context)
    assert diagnosis.sentence == (
        "the checkpoint of report 5 has waited 45 s for storage at /storage/run; "
        "ranks 0 and 1 wait for it in report() at train.py:44 in train_fn"
    )
    assert not diagnosis.is_curable


def test_more_than_eight_ranks_are_counted():
    assert [format_ranks(range(count)) for count in (1, 2, 8, 9)] == [
        "rank 0",
        "ranks 0 and 1",
        "ranks 0, 1, 2, 3, 4, 5, 6 and 7",
        "9 ranks (0, 1, 2, 3, ...)",
    ]


@pytest.mark.parametrize(
    ("activities", "sentence"),
    [
        ([rank_at(0, "stopped")], "rank 0 is stopped by a signal (SIGSTOP), silent for 45 s; its last report was made"),
        (
            [rank_at(0, "stopped", ""), rank_at(1, "stopped", "")],
            "ranks 0 and 1 are stopped by a signal (SIGSTOP), silent for 45 s",
        ),
        (
            [rank_at(0, "mute", "", "nfs")],
            "rank 0 has been silent for 45 s: code outside Python holds the GIL, waiting in the kernel (nfs)",
        ),
        (
            [rank_at(0, "cut off", host="host3"), rank_at(1, "collective")],
            "rank 0 on host3 has been silent for 45 s: its host does not answer either; its last report was made at "
            "train.py:44 in train_fn; rank 1 waits for it in a collective",
        ),
        (
            [rank_at(0, "cut off", ""), rank_at(1, "cut off", "")],
            "ranks 0 and 1 have been silent for 45 s: their hosts do not answer either",
        ),
        (
            [rank_at(0, "saving")],
            "rank 0 has been stuck for 45 s storing the checkpoint of report 5 at /storage/run at train.py:44",
        ),
        ([rank_at(0, "storage")], "rank 0 has been stuck for 45 s waiting for storage at train.py:44 in train_fn"),
        (
            [rank_at(0, "storage", host="host3")],
            "rank 0 on host3 has been stuck for 45 s waiting for storage at train.py:44",
        ),
        (
            [rank_at(rank, "storage", host=f"host{rank}") for rank in range(2)],
            "ranks 0 and 1 have been stuck for 45 s waiting for storage at train.py:44",
        ),
        ([rank_at(0, "loader")], "rank 0 has been stuck in the data loader at train.py:44 in train_fn for 45 s"),
        ([rank_at(0, "other", is_computing=True)], "rank 0 has been computing at train.py:44 in train_fn for 45 s"),
        ([rank_at(0, "gpu", call="loss.item")], "rank 0 has waited for a GPU (loss.item) at train.py:44 in train_fn"),
        ([rank_at(0, "barrier")], "rank 0 has waited in paceline's barrier or broadcast at train.py:44 in train_fn"),
    ],
)
def test_each_activity_has_its_words(activities, sentence):
    pending = PendingCheckpoint(5, "checkpoint_000005", 0, "train.py:44", msgspec.Raw(b"{}"))
    later = msgspec.structs.replace(pending, seq=6)
    diagnosis = diagnose_hang(activities, HangContext("/storage/run", (pending, later)))
    assert diagnosis.sentence.startswith(sentence)
    assert (diagnosis.rank, diagnosis.is_curable) == (0, True)
    assert len(diagnosis.frames) == 1


@pytest.mark.parametrize("count", [4, 6])
def test_four_places_are_named_and_the_others_counted(count):
    culprits = [rank_at(rank, "other", f"train.py:{rank} in train_fn") for rank in range(count)]
    clauses = diagnose_hang([*culprits, rank_at(9, "report")], CONTEXT).sentence.split("; ")
    assert clauses[4:-1] == ([] if count == 4 else ["2 more are stuck elsewhere"])
    assert clauses[-1] == "rank 9 waits for them in report() at train.py:44 in train_fn"
    waiting = [rank_at(rank, "barrier", f"train.py:{rank} in train_fn") for rank in range(count)]
    sentence = diagnose_hang(waiting, CONTEXT).sentence
    assert sentence.count("has waited") == 4
    assert ("2 more places" in sentence) == (count == 6)


def data_at(pid, doing, *, stage="read", call="", where="prepare.py:7 in tokenize"):
    return DataActivity(pid, stage, "part-3", rank_at(0, doing, where, call))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([data_at(1, "stopped")], "the data process 1 is stopped by a signal (SIGSTOP) reading part-3 for 45 s"),
        (
            [data_at(1, "stopped"), data_at(2, "stopped")],
            "data processes 1, 2 are stopped by a signal (SIGSTOP) reading",
        ),
        (
            [data_at(1, "mute", call="nfs")],
            "the data process 1 has been silent reading part-3 for 45 s: code outside Python holds the GIL, waiting "
            "in the kernel (nfs); rank 1",
        ),
        ([data_at(1, "other", stage="map", where="")], "the data process 1 has been stuck in map, on part-3, for 45 s"),
        (
            [data_at(pid, "other") for pid in range(4)],
            "data processes 0, 1, 2, 3 have been stuck reading part-3 at prepare.py:7",
        ),
        ([data_at(pid, "other") for pid in range(5)], "data processes 0, 1, 2, 3, ... have been stuck reading part-3"),
    ],
)
def test_data_processes_that_stand_are_named(data, sentence):
    diagnosis = diagnose_hang([rank_at(1, "rows")], HangContext("/storage/run", data=tuple(data)))
    assert diagnosis.sentence.startswith(sentence)
    whom = "it" if len(data) == 1 else "them"
    assert diagnosis.sentence.endswith(f"; rank 1 waits for {whom} for rows of a dataset at train.py:44 in train_fn")


@pytest.mark.parametrize(
    ("status", "doing", "call"),
    [
        (ProcessStatus("T", kernel_function="x"), "stopped", ""),
        (ProcessStatus("t"), "stopped", ""),
        (ProcessStatus("D", kernel_function="nfs"), "mute", "nfs"),
        (ProcessStatus("R", kernel_function="x"), "mute", ""),
        (ProcessStatus(is_host_silent=True), "cut off", ""),
        (None, "mute", ""),
    ],
)
def test_a_rank_without_a_sample_is_stopped_or_mute(status, doing, call):
    activity = infer_activity(3, None, status, "train.py:40", 45.0)
    assert activity == RankActivity(3, doing, "train.py:40", call, 45.0, (), True, False)


def test_a_debugger_is_recognised_by_its_frames_or_by_the_system():
    assert is_debugged(StacksSampled(1, 0, 1, (USER_FRAME, *library("bdb.trace_dispatch", "pdb.interaction"))), None)
    assert is_debugged(None, ProcessStatus("t", is_traced=True))
    assert not is_debugged(StacksSampled(1, 0, 1, (USER_FRAME,)), ProcessStatus("S"))


def test_all_threads_of_all_ranks_are_written_with_the_users_lines_marked():
    sample = StacksSampled(1, 1, 1, (USER_FRAME,), "time.sleep", others=(("uploader", library("threading.wait")),))
    text = format_stacks(
        {0: None, 1: sample}, {1: ProcessStatus("S", 2.5), 0: ProcessStatus("D", kernel_function="nfs_wait")}
    )
    assert text == (
        "rank 0: state D, 0.00 s of CPU\n"
        "  does not answer, waiting in the kernel: nfs_wait\n"
        "rank 1: state S, 2.50 s of CPU\n"
        "  main thread\n"
        "    > train.py:41 in train_fn\n"
        "        calling time.sleep\n"
        "  uploader\n"
        "      threading.py:1 in wait\n"
    )
