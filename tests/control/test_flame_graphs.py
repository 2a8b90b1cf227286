"""Flame graphs: nothing counted is lost, and nothing that is named is markup. tests/browser looks at the page."""

import json
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._control import flame_graph
from paceline._control.flame_graph import parse_folded_stacks, render_flame_page
from paceline._worker import profiler
from paceline._worker.profiler import StackSamples

NAMES = st.text("ab <>&'\"\\/é\u2028", min_size=1, max_size=8)
NO_STACKS = st.sampled_from(["", "a;b", "a;b ", " 5", "a;b x", "a;b -1", "a;b 1.5", "a;b \u00b2", "a;b \u0663"])
STACKS = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=6), st.integers(1, 1000)), max_size=20)


def folded_of(stacks):
    return "".join(f"{';'.join(names)} {count}\n" for names, count in stacks)


def data_of(page):
    begin = page.index('id="data">') + len('id="data">')
    nodes: list[list[object]] = json.loads(page[begin : page.index("</script>", begin)])["nodes"]
    return nodes


@given(STACKS, st.lists(NO_STACKS, max_size=3))
def test_every_sample_is_counted_in_its_stack(stacks, invalid):
    root = parse_folded_stacks(folded_of(stacks) + "\n".join(invalid))
    assert root.count == sum(count for _, count in stacks)
    outermost: Counter[str] = Counter()
    for names, count in stacks:
        outermost[names[0]] += count
    assert {name: node.count for name, node in root.children.items()} == outermost


@given(STACKS, st.text(max_size=30))
def test_no_name_is_markup(stacks, title):
    hostile = [([*names, "</script><script>alert(1)</script>", "<!--"], count) for names, count in stacks]
    page = render_flame_page(folded_of(hostile), f"{title}<img src=x>")
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "<!--" not in page
    nodes = data_of(page)
    for name, _, start, count in nodes:
        assert isinstance(name, str)
        assert 0 <= start <= start + count <= sum(count for _, count in stacks)


def test_more_boxes_than_a_page_can_hold_lose_the_narrowest(monkeypatch):
    monkeypatch.setattr(flame_graph, "MOST_NODES", 50)
    stacks = [([f"wide_{n}"], 100) for n in range(10)] + [([f"narrow_{n}"], 1) for n in range(500)]
    nodes = data_of(render_flame_page(folded_of(stacks), "many"))
    names = {node[0] for node in nodes}
    assert len(nodes) <= 50
    assert {f"wide_{n}" for n in range(10)} <= names
    assert nodes[0][3] == 1500, "what was left out is still counted"


def test_a_sample_weighs_as_much_as_the_time_since_the_last(monkeypatch):
    now = [100.0]
    turns_s = []

    class Ending:
        """Each wait takes half a second, as where C code keeps the GIL."""

        def wait(self, timeout_s):
            now[0] += 0.5
            turns_s.append(sys.getswitchinterval())
            return False

    monkeypatch.setattr(profiler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    before, samples = sys.getswitchinterval(), StackSamples()
    samples.collect(2.0, Ending())
    assert turns_s == pytest.approx([profiler.SWITCH_INTERVAL_S] * 4), (
        "it gets its turn where time is spent, not where others let go"
    )
    assert sys.getswitchinterval() == before
    lines = [line for line in samples.to_folded().splitlines() if line.startswith("main thread;")]
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 200, "two seconds, in hundredths"
