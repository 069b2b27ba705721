#!/usr/bin/python3
"""Sends UDP at a rate that nothing slows down, with pauses.

    bursts.py ADDRESS PORT MEGABITS ON_MS OFF_MS ROUNDS

ADDRESS may be several with commas between: each datagram goes to the next one. Datagrams of 1400 bytes go in batches, one a
millisecond. With OFF_MS 0 there is no pause. Ends with the JSON of
{"sent": datagrams}.
"""

import json
import socket
import sys
import time

SIZE = 1400
BATCH = 0.001


def main():
    addresses, port = sys.argv[1].split(","), int(sys.argv[2])
    rate, on, off, rounds = (float(word) for word in sys.argv[3:7])
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    data = bytes(SIZE)
    per_second = rate * 1e6 / 8 / SIZE
    sent = 0
    for _ in range(int(rounds)):
        start = time.monotonic()
        here = 0
        while (passed := time.monotonic() - start) < on / 1000:
            while here < passed * per_second:
                try:
                    out.sendto(data, (addresses[(sent + here) % len(addresses)], port))
                except OSError:
                    # A full queue of the sender's own: that is what it is here for.
                    pass
                here += 1
            time.sleep(BATCH)
        sent += here
        time.sleep(off / 1000)
    print(json.dumps({"sent": sent}))


main()
