"""Tasks of Django on FOQS: the backend, the worker and the relay of a Django project.

TASKS = {"default": {"BACKEND": "foqs_client.django.FoqsBackend"}}
INSTALLED_APPS = [..., "foqs_client.django"]

docs/django.md shows how it is used. Always true: a task is written in the transaction of the caller, and so with its data
or not at all. Importing this package needs Django, and loads no model.
"""

from foqs_client.django.backend import FoqsBackend

__all__ = ["FoqsBackend"]
