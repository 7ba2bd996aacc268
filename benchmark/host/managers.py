"""The service manager of a host: the one that its settings name."""

from __future__ import annotations

from .services import Manager
from .settings import Settings


def manager_for(settings: Settings) -> Manager:
    if settings.manager == "systemd":
        from .systemd import Systemd  # neither needs what the other is made of

        return Systemd(settings)
    from .supervisord import Supervisord

    return Supervisord(settings)
