"""Ports: binding them, and naming the process that holds one."""

from __future__ import annotations

import errno
import itertools
import secrets
import socket
from collections.abc import Collection

import psutil

from molecule_hermes.errors import StartError

__all__ = [
    "bind",
    "cannot_listen",
    "choose_port",
    "listens",
    "port_owner",
    "require_free_port",
    "socket_family",
]

_FIRST, _LAST = 20_000, 31_999
"""Below the ports that Linux gives to processes that ask for any."""


def socket_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bind(unbound: socket.socket, host: str, port: int, variable: str, example: str) -> None:
    """Binds the socket, or closes it and raises the `StartError` of `cannot_listen`."""
    unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        unbound.bind((host, port))
    except OSError as error:
        unbound.close()
        raise cannot_listen(error, host, port, variable, example) from error


def choose_port(host: str, taken: Collection[int]) -> int:
    """A port that is free, but for these; not one that the kernel gives to somebody else."""
    ports = range(_FIRST, _LAST + 1)
    start: int = secrets.randbelow(len(ports))
    for port in itertools.chain(ports[start:], ports[:start]):
        if port not in taken and _is_free(host, port):
            return port
    raise StartError(f"no port from {_FIRST} to {_LAST} is free on {host}", "stop some processes")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def require_free_port(host: str, port: int, variable: str, example: str) -> None:
    """Raises the `StartError` of `cannot_listen` if nothing could listen there."""
    host = host.strip("[]")
    with socket.socket(socket_family(host), socket.SOCK_STREAM) as probe:
        bind(probe, host, port, variable, example)


def cannot_listen(error: OSError, host: str, port: int, variable: str, example: str) -> StartError:
    """Explains the error, with the setting `variable=example` that chooses another port."""
    if isinstance(error, PermissionError):
        return StartError(
            f"this user may not listen on port {port}", f"choose another: {variable}={example}"
        )
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} on {host} is taken by {port_owner(port) or 'another process'}",
            f"stop it, or choose another port: {variable}={example}",
        )
    return StartError(f"{host} is not an address of this machine", "use 127.0.0.1")


def listens(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def port_owner(port: int) -> str | None:
    """The process that listens on the port, as far as this user may see it; None if none does."""
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr and connection.laddr.port == port:
                return _name(connection.pid)
    except psutil.Error:
        pass  # some systems show connections to root only
    return "another process" if listens("127.0.0.1", port) else None


def _name(pid: int | None) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})" if pid else "another process"
    except psutil.Error:
        return "another process"
