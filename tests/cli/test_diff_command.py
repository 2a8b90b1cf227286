"""`paceline diff`: what differs between two runs. The example of the page is in test_command_line_docs.py."""

import msgspec

from paceline._view.model import Diff


def test_code_that_differs_is_shown_as_a_diff_and_configuration_as_json(paceline, odd_run):
    out = paceline("diff", "resnet", str(odd_run)).out
    before, after = '        loss = config["lr"] * 10 / step', " if step < 3 else float(step)"
    assert f"-{before}\n+{before}{after}\n" in out
    assert "\x1b" not in out
    assert "the same: configuration, code, environment" in paceline("diff", "resnet", "resnet").out
    found = msgspec.json.decode(paceline("diff", "resnet", "resnet-2", "--json").out, type=Diff)
    assert ("lr", 0.1, 0.05) in [(change.key, change.a, change.b) for change in found.config]
