"""Stands in for the package whose tests run: its backend is `FoqsBackend` with results, and its worker is ours."""

from django_tasks_db import compat
from foqs_client.django import FoqsBackend

__all__ = ["DatabaseBackend", "compat"]


class DatabaseBackend(FoqsBackend):
    """`FoqsBackend`, whose results are on unless the suite says otherwise."""

    def __init__(self, alias, params):
        given = params.get("OPTIONS", {})
        super().__init__(alias, {**params, "OPTIONS": {"results": True, **given}})
        self.options = given
