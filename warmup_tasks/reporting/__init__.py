"""Reporting: one run's figures as JSON, as an HTML page and on the console, read from the lake. Changes nothing."""

from warmup_tasks.reporting.console import print_summary
from warmup_tasks.reporting.model import RunSummary
from warmup_tasks.reporting.report import write_report
from warmup_tasks.reporting.summary import summarise
from warmup_tasks.reporting.tables import report_tables

__all__ = ["RunSummary", "print_summary", "report_tables", "summarise", "write_report"]
