"""Free and taken ports, and the messages about them."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from molecule_hermes.errors import StartError
from molecule_hermes.net.ports import port_owner, require_free_port
from tests.support.serving import free_port


def test_a_taken_port_is_named_with_its_owner_and_the_variable_that_changes_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"port {port}.*pid {os.getpid()}.*VAR=1"):
            require_free_port("127.0.0.1", port, "VAR", "1")
    require_free_port("127.0.0.1", free_port(), "VAR", "1")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_not_reported_as_a_taken_port(host: str) -> None:
    with pytest.raises(StartError, match=f"^{host} is not an address of this machine"):
        require_free_port(host, free_port(), "MOLECULE_HERMES_PORT", "8001")


def test_an_ipv6_address_in_brackets_is_accepted() -> None:
    require_free_port("[::1]", free_port(), "MOLECULE_HERMES_PORT", "8001")


def test_the_owner_of_a_port_is_named_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"(pid {os.getpid()})" in str(port_owner(port))
    assert port_owner(port) is None


def test_the_owner_is_found_where_connections_are_shown_to_root_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_owner(port) == "another process"
    assert port_owner(port) is None
