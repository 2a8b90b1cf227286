"""A Ray cluster of several nodes on this machine, in a process of its own: run as a script, told by lines of JSON.

It is no child of the tests, and what Ray starts carries no mark of theirs: the guards of the tests do not see it. It
ends, with all its nodes, when its standard input does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def blind_to(path: str, address: str, node: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A node that sees an empty directory in the place of another, as a machine of its own would."""
    ray = Path(sys.executable).with_name("ray")
    options = [f"--address={address}", f"--num-cpus={node['num_cpus']}", f"--resources={json.dumps(node['resources'])}"]
    options += [f"--object-store-memory={node['object_store_memory']}", "--disable-usage-stats", "--block"]
    apart = 'mount -t tmpfs none "$0" && exec "$@"'
    return subprocess.Popen(["unshare", "-m", "sh", "-c", apart, path, str(ray), "start", *options])


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = {}
    blind: list[subprocess.Popen[bytes]] = []
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "add":
                if "blind_to" in asked:
                    blind.append(blind_to(asked["blind_to"], cluster.address, asked["node"]))
                    print("{}", file=answers, flush=True)
                    continue
                node = cluster.add_node(**asked["node"])
                nodes[node.node_id] = node
                answer = {"node": node.node_id, "address": cluster.address}
            elif asked["do"] == "see":
                process = blind.pop()
                process.terminate()
                process.wait()
                answer = {}
            else:
                cluster.remove_node(nodes.pop(asked["node"]), allow_graceful=False)
                answer = {"node": asked["node"]}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        for process in blind:
            process.terminate()
            process.wait()
        cluster.shutdown()


if __name__ == "__main__":
    # Ray prints to standard output as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.fork():
        os._exit(0)
    os.setsid()
    main()
