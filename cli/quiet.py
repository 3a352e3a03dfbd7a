"""What tools for people print is their own words alone."""

from __future__ import annotations

import logging
import warnings


def keep_libraries_quiet() -> None:
    """Drop what SDKs log and warn of: it would go to the terminal, and can quote tokens and requests."""
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
