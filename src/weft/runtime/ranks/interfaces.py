"""Interfaces: by which of this host's addresses ranks of other hosts reach it.

The name of a host says too little: Debian's `/etc/hosts` leads it to a loopback on the host itself,
where others find it in the network. Then it is that of the interface that gloo is given, or
the one from which a packet to any other network would leave.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address

from torch._C._distributed_c10d import PrefixStore, Store

GLOO = "GLOO_SOCKET_IFNAME"  # where gloo takes the name of its interface from
LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"  # nobody's, for documentation: RFC 5737
NO_PORT = 9  # discards what comes, and nothing is sent to it
ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux
REQUEST, ADDRESS = struct.Struct("16s24x"), slice(20, 24)  # its ifreq


def own_ip(store: Store) -> str:
    """The address by which others reach this host; a loopback where all ranks must be on it."""
    meeting = _host_of(store)
    found = _ip_towards(meeting)
    if not is_loopback(found) or is_loopback(meeting):
        return found
    return _ip_of(interface_of_gloo()) or _ip_towards(ELSEWHERE)


def interface_with(ip: str) -> str | None:
    """The name of the interface that has this address, where one does."""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if _ip_of(name) == ip), None)


def interface_of_gloo() -> str:
    """The interface that gloo is given; empty where it chooses one itself."""
    return os.environ.get(GLOO, "").split(",")[0]  # noqa: TID251 (gloo takes it from nowhere else)


def is_loopback(host: str) -> bool:
    """Whether this leads to whoever follows it, on every host."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def _host_of(store: Store) -> str:
    """Where the group meets, by this rank's settings; a loopback where it needs no network."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", LOOPBACK))


def _ip_towards(host: str) -> str:
    """The address from which this host would send to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, NO_PORT))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def _ip_of(interface: str) -> str | None:
    """The first address of an interface, where the system says it."""
    with suppress(ImportError, OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        from fcntl import ioctl

        said = ioctl(asked, ADDRESS_OF, REQUEST.pack(interface.encode()))
        return socket.inet_ntoa(said[ADDRESS])
    return None
