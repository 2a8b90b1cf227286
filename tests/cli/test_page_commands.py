"""`paceline dashboard` and `paceline report`: thin, so only what they pass on and how they end."""

import json
import signal
import urllib.error
import urllib.request

import pytest


def test_the_dashboard_prints_its_address_serves_and_ends_with_ctrl_c(start_command, paceline, tmp_path):
    options = ("--port", "0", "--token", "a-token-of-some-length", "--allow-control", "--json")
    process = start_command("dashboard", "--no-browser", *options)
    address = json.loads(process.stdout.readline())["address"]
    assert "a-token-of-some-length" in address
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address.partition('/?')[0]}/api/runs", timeout=240)
    assert refused.value.code in (401, 403)
    refused.value.close()
    asked = urllib.request.Request(f"{address.partition('/?')[0]}/api/about")
    asked.add_header("Authorization", "Bearer a-token-of-some-length")
    with urllib.request.urlopen(asked, timeout=240) as about:
        assert json.load(about)["control"] is True
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert "is not a directory" in paceline("dashboard", str(tmp_path / "missing")).err


@pytest.mark.parametrize("run", ["resnet", "sweep"])
def test_a_report_is_one_page(run, paceline, tmp_path):
    result = paceline("report", run)
    assert result.code == 0, result.err
    assert (tmp_path / f"{run}.html").read_bytes().lower().startswith(b"<!doctype html>")
    made = json.loads(paceline("report", run, "-o", "other.html", "--json").out)
    assert made["file"] == str(tmp_path / "other.html")
    assert made["num_bytes"] == (tmp_path / "other.html").stat().st_size
    assert paceline("report", run, "-o", "-").out.lower().startswith("<!doctype html>")
