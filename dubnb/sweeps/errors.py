"""What stops a sweep that was asked for correctly."""


class SweepError(RuntimeError):
    """The sweep cannot go on (full disk, lost cluster); what had finished is kept, and the message says what to do."""
