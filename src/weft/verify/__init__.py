"""Verification: what a program must obey before anything runs it, rule by rule."""

from weft.verify.report import Finding, Report
from weft.verify.rules import RULES, Rule, check, verify

__all__ = ["RULES", "Finding", "Report", "Rule", "check", "verify"]
