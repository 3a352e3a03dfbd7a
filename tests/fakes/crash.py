"""How fakes end a process within a test."""


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the product may survive it."""
