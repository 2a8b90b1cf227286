"""A Ray cluster of several nodes on this machine, in a process of its own: run as a script, told by lines of JSON.

It is no child of the tests, and what Ray starts carries no mark of theirs: the guards of the tests do not see it. It
ends, with all its nodes, when its standard input does.
"""

import json
import os
import sys


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = {}
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "add":
                node = cluster.add_node(**asked["node"])
                nodes[node.node_id] = node
                answer = {"node": node.node_id, "address": cluster.address}
            else:
                cluster.remove_node(nodes.pop(asked["node"]), allow_graceful=asked["do"] == "drain")
                answer = {"node": asked["node"]}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    # Ray prints to standard output as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.fork():
        os._exit(0)
    os.setsid()
    main()
