"""Modes: the sides that run under netacc_run."""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """One column of the matrix that every program goes through."""

    TCP = "tcp"
    SHM = "shm"
    SERVER_ONLY = "server-only"
    CLIENT_ONLY = "client-only"

    @property
    def server(self) -> bool:
        """Is the server preloaded?"""
        return self in (Mode.SHM, Mode.SERVER_ONLY)

    @property
    def client(self) -> bool:
        """Is the client preloaded?"""
        return self in (Mode.SHM, Mode.CLIENT_ONLY)

    @property
    def one_sided(self) -> bool:
        return self in (Mode.SERVER_ONLY, Mode.CLIENT_ONLY)
