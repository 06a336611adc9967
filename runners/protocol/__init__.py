"""The messages between driver and ranks, and the records made from them.

Driver and ranks share nothing else.
"""
