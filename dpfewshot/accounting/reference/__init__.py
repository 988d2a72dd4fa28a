"""Accounting to compare with: the papers' own formulas, and two independent libraries."""
