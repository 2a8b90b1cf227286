"""A member in a process of its own: `python exec_member.py ADDRESS DATASET MEMBER MEMBERS SHARED EPOCHS`.

Prints the sum of the numbers that it saw in each epoch, and how many there were; `hold` as a further argument has it
stop after the first block until it is ended, `together` has it wait for a line before the first.
"""

import sys
import time

from paceline.data.exec.remote import RemoteFeeds


def main() -> None:
    address, dataset, member, members, shared, epochs, *more = sys.argv[1:]
    feeds = RemoteFeeds(address, dataset, int(member), int(members), shared == "shared")
    if more == ["together"]:
        print("ready", flush=True)
        sys.stdin.readline()
    for epoch in range(int(epochs)):
        seen = []
        for delivered in feeds.open(epoch, 0, 0):
            seen += delivered.block.column("number").tolist()
            if more == ["hold"]:
                print("holding", flush=True)
                time.sleep(1000)
        print(len(seen), sum(seen), flush=True)
    feeds.close()


main()
