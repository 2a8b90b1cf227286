"""The answers to requests for profiles, and the boxes of a flame graph."""

import json

from paceline._control.flame_graph import render_flame_page
from paceline._control.request_handler import build_profiles_answer
from paceline._control.requests import DiagnosticFile


def test_the_answer_counts_the_profiles() -> None:
    file = DiagnosticFile(kind="trace", path="x", rank=0, at=0.0)
    texts = [build_profiles_answer([], {}, {}, [file] * count, "", "/run").text for count in range(3)]
    assert texts == ["no profile was recorded", "1 file in /run/profiles", "2 files in /run/profiles"]


def test_boxes_of_a_flame_graph_lie_side_by_side_above_their_caller() -> None:
    page = render_flame_page("a;b 2\na;c 3\nd 4\n", "t")
    boxes = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["nodes"]
    assert sorted(boxes) == [["a", 1, 0, 5], ["all", 0, 0, 9], ["b", 2, 0, 2], ["c", 2, 2, 3], ["d", 1, 5, 4]]
