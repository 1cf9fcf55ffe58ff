"""A run, or several beside each other, as one HTML page that needs nothing but a browser."""

from __future__ import annotations

from shoal.report.write import make_page, write_report

__all__ = ["make_page", "write_report"]
