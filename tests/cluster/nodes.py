"""A Ray cluster of several nodes on this machine, in a process of its own: run as a script, told by lines of JSON.

It is no child of the tests, and what Ray starts carries no mark of theirs: the guards of the tests do not see it. It
ends, with all its nodes, when its standard input does.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def blind_to(path: str, address: str, node: dict[str, Any]) -> Iterator[None]:
    """A node that sees an empty directory in the place of another, as a machine of its own would."""
    ray = Path(sys.executable).with_name("ray")
    options = [f"--address={address}", f"--num-cpus={node['num_cpus']}", f"--resources={json.dumps(node['resources'])}"]
    options += [f"--object-store-memory={node['object_store_memory']}", "--disable-usage-stats", "--block"]
    apart = 'mount -t tmpfs none "$0" && exec "$@"'
    with subprocess.Popen(["unshare", "-m", "sh", "-c", apart, path, str(ray), "start", *options]) as process:
        yield
        process.terminate()


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = {}
    blind = contextlib.ExitStack()
    try:
        for line in sys.stdin:
            request = json.loads(line)
            answer = {}
            if "blind_to" in request:
                blind.enter_context(blind_to(request["blind_to"], cluster.address, request["node"]))
            elif request["do"] == "add":
                node = cluster.add_node(**request["node"])
                nodes[node.node_id] = node
                answer = {"node": node.node_id, "address": cluster.address}
            elif request["do"] == "see":
                blind.close()
            else:
                cluster.remove_node(nodes.pop(request["node"]), allow_graceful=False)
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        blind.close()
        cluster.shutdown()


if __name__ == "__main__":
    # Ray prints to standard output as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.fork():
        os._exit(0)
    os.setsid()
    main()
