"""Tasks for services that use Penstock through a plain Celery client (docs/doors.md)."""
