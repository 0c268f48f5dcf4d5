"""What the report refuses."""

from lightning_ubs.errors import ReportError as ReportError
