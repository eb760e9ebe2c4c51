"""Echoes on any number of connections, one call at a time, until all of them are closed: server.py PORT."""

import selectors
import socket
import sys


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=4096)
    listener.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    is_used = False
    while not is_used or len(selector.get_map()) > 1:
        for key, _ in selector.select():
            end = key.fileobj
            assert isinstance(end, socket.socket)
            if end is listener:
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                selector.register(accepted, selectors.EVENT_READ)
                is_used = True
            elif data := end.recv(4096):
                end.sendall(data)
            else:
                selector.unregister(end)
                end.close()


main()
