"""Batch selection."""
