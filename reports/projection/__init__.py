"""Throughput at sizes that were not measured, each with an interval; says why where there is no
answer.
"""
