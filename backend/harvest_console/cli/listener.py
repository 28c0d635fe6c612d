"""The socket that the console listens on, opened before anything slow is imported or started."""

from __future__ import annotations

import errno
import socket

from harvest.errors import ConfigurationError


class PortTakenError(ConfigurationError):
    """The address to listen on cannot be had."""

    code, slug = "HVT-421", "port_taken"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is known before anything else is started; port 0 takes a free one.

    Raises PortTakenError, or ConfigurationError for a host that is not this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise ConfigurationError(f"--host {host}: {error.strerror}") from error
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            reason = "is taken" if error.errno == errno.EADDRINUSE else "may not be used by this user"
            raise PortTakenError(
                f"port {port} of {host} {reason}: choose another with --port, or --port 0 for any free one",
                host=host,
                port=port,
            ) from error
        raise ConfigurationError(f"cannot listen on {host}: {error.strerror}") from error
