"""Listens in the name of process 2 of another PID namespace, and answers as that process."""

from __future__ import annotations

import json
import socket

PID = 2

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(f"\0netacc-ss/{PID}")
    listener.listen()
    print("listening", PID, flush=True)
    while True:
        asking, _ = listener.accept()
        with asking:
            asking.recv(256)
            asking.sendall(
                json.dumps({"version": 1, "pid": PID, "program": "x", "backend": "x", "refused": ""}).encode()
            )
