"""What stops a sweep, and who can help."""

from dubnb._check import InputError


class NotShared(InputError):
    """The workers cannot see a directory in which trials are to leave files."""


class SweepError(RuntimeError):
    """The sweep cannot go on (full disk, lost cluster); what had finished is kept, and the message says what to do."""
