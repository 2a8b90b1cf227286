"""Keeps each packet for a while on its way between two TAP devices. Arguments: their names, and seconds.

It ends when its input does.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000


def open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def main():
    near, far = map(open_tap, sys.argv[1:3])
    delay_s = float(sys.argv[3])
    opposite = {near: far, far: near}
    waiting = deque()
    print("ready", flush=True)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([sys.stdin, near, far], [], [], timeout)
        if sys.stdin in readable:
            return
        for tap in readable:
            waiting.append((time.monotonic() + delay_s, opposite[tap], os.read(tap, 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, packet = waiting.popleft()
            os.write(tap, packet)


if __name__ == "__main__":
    main()
