"""A member in a process of its own: `python exec_member.py ADDRESS DATASET MEMBER MEMBERS SHARED EPOCHS [MODE]`.

Prints for each epoch how many numbers it saw and their sum. It waits for a line on stdin before the first block
(`together`, after printing "ready") or after it (`hold`, after printing "holding").
"""

import sys

from paceline.data.exec.service_client import RemoteFeeds


def main() -> None:
    address, dataset, member, members, shared, epochs, *mode = sys.argv[1:]
    feeds = RemoteFeeds(address, dataset, int(member), int(members), shared == "shared")
    if mode == ["together"]:
        wait_for_a_line("ready")
    for epoch in range(int(epochs)):
        seen = []
        for delivered in feeds.open(epoch, 0, 0):
            if mode == ["hold"] and not seen:
                wait_for_a_line("holding")
            seen += delivered.block.column("number").tolist()
        print(len(seen), sum(seen), flush=True)
    feeds.close()


def wait_for_a_line(state: str) -> None:
    print(state, flush=True)
    sys.stdin.readline()


main()
