"""A Ray cluster of several nodes on this machine, in a process of its own: run as a script, told by lines of JSON.

It is no child of the tests, and what Ray starts carries no mark of theirs: the guards of the tests do not see it. It
ends, with all its nodes, when its standard input does.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator

CLONE_NEWNS = 0x00020000


@contextlib.contextmanager
def blind_to(path: str) -> Iterator[None]:
    """What is started here sees an empty directory in the place of another, as a machine of its own would."""
    libc = ctypes.CDLL(None, use_errno=True)
    cwd = os.getcwd()
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace can be made")
    try:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
        yield
    finally:
        if libc.setns(before, CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "the mount namespace cannot be left")
        os.close(before)
        os.chdir(cwd)


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = {}
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "add":
                with blind_to(asked["blind_to"]) if asked.get("blind_to") else contextlib.nullcontext():
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
