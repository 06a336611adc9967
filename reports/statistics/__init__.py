"""Intervals on ratios, rates and accuracies, and what looking again costs.

Arrays in, numbers out: knows no arm, plan or table.
"""
