"""Horovod as a back end: its optimizer, its rendezvous, its communicator."""
