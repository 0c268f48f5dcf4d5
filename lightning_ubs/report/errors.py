"""What the report refuses."""


class ReportError(ValueError):
    """The report cannot be made; the message says why and what to do."""
