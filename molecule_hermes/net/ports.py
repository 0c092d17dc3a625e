"""Ports: free or taken, by whom, and which variable moves us away."""

from __future__ import annotations

import errno
import socket

import psutil

from molecule_hermes.errors import StartError

__all__ = ["cannot_listen", "listens", "port_owner", "require_free_port"]


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def port_owner(port: int) -> str:
    """Who listens on a port, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.pid
            if listening and connection.laddr and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "another process"


def require_free_port(host: str, port: int, variable: str, example: str) -> None:
    """Raises `StartError` naming the port, who holds it and the variable that moves it."""
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise cannot_listen(error, host, port, variable, example) from error


def cannot_listen(error: OSError, host: str, port: int, variable: str, example: str) -> StartError:
    if isinstance(error, PermissionError):
        return StartError(
            f"this user may not listen on port {port}", f"choose another: {variable}={example}"
        )
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} on {host} is taken by {port_owner(port)}",
            f"stop it, or choose another port: {variable}={example}",
        )
    return StartError(f"{host} is no address of this machine", "use 127.0.0.1")
