"""The errors that this package raises on purpose; each message ends with what to do.

Whoever calls the package catches one base class. Each error is also the built-in one that fits it, so that
``except ValueError`` keeps working.
"""

from __future__ import annotations


class LightningUBSError(Exception):
    """Base of all errors of this package: a sentence for the user, who can put right what it names."""


class SelectionError(LightningUBSError, ValueError):
    """Raised when selection cannot proceed; the message says how to fix it."""


class DataError(LightningUBSError, ValueError):
    """A dataset cannot be read or used; the message is one sentence that names it and says what to do."""


class ConfigError(LightningUBSError, ValueError):
    """A key or value that the user gave cannot be used; the message names it, what is allowed, and what to do."""


class UsageError(LightningUBSError, ValueError):
    """The command line cannot be understood; the message says what is allowed."""


class RecordError(LightningUBSError, ValueError):
    """A text is not the record of a run, or of a schema that this version cannot read; the message says which."""


class StoreError(LightningUBSError, RuntimeError):
    """A results folder cannot be read or written; the message says which and what to do."""


class EngineError(LightningUBSError, RuntimeError):
    """Processes of an engine were lost, or it cannot be used; the message says how and what to do."""


class RunsFailed(LightningUBSError, RuntimeError):
    """Some runs of a grid failed; the message says how many and why the last did."""


class ReportError(LightningUBSError, ValueError):
    """A report cannot be made; the message says why and what to do."""
