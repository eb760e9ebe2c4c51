"""A UDP client that sends bursts of datagrams, and checks bytes, order and source of the answers.

Arguments: the server's address and port, the number of bursts, how it sends (`sendto`, `connected`, or
`alternating`: to two addresses of the server in turns), and whether the answers come in order (`ordered`
or `any`).
"""

from __future__ import annotations

import random
import socket
import sys

from tests.apps.programs.datagram_server import END, LONGEST

BURST = 16
LENGTHS = [0, 1, 7, 8, 64, 512, 1472, 4096]
#: Once in a while, alone: the longest that both paths take.
LONG = 60_000


def datagram(number: int, length: int) -> bytes:
    return number.to_bytes(4, "big") + bytes((number + i) % 256 for i in range(length))


def main() -> None:
    address, how, order = sys.argv[1], sys.argv[4], sys.argv[5]
    port, bursts = int(sys.argv[2]), int(sys.argv[3])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.settimeout(60)
    to = (address, port)
    destinations = [to, ("127.0.0.2", port)] if how == "alternating" else [to]
    if how == "connected":
        client.connect(to)
    chosen = random.Random(17)
    number = 0
    for burst in range(bursts):
        lengths = [LONG] if burst % 50 == 49 else [chosen.choice(LENGTHS) for _ in range(BURST)]
        sent = [datagram(number + i, length) for i, length in enumerate(lengths)]
        number += len(sent)
        for i, one in enumerate(sent):
            other = destinations[i % len(destinations)]
            assert (client.send(one) if how == "connected" else client.sendto(one, other)) == len(one)
        answers = []
        for _ in sent:
            answer, source = client.recvfrom(LONGEST)
            assert source[:2] == to, source
            answers.append(answer)
        assert (answers if order == "ordered" else sorted(answers)) == sent, f"burst {burst}"
    print(f"received {number}", flush=True)
    if how == "connected":
        client.send(END)
    else:
        client.sendto(END, to)
    assert client.recv(LONGEST) == END


if __name__ == "__main__":
    main()
