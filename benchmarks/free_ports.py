"""Ports of this machine that nobody listens at."""

import socket


def free_ports(number: int) -> list[int]:
    """Different ports that are free now; another program may take one before it is used."""
    opened = [socket.socket() for _ in range(number)]
    for one in opened:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in opened]
    for one in opened:
        one.close()
    return ports
