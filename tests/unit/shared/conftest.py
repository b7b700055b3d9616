"""Fixtures of the shared log: a real PostgreSQL."""

from __future__ import annotations

from tests.support.postgres import postgres_server, shared_database

__all__ = ["postgres_server", "shared_database"]
