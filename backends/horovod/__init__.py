"""Horovod as a backend: its optimizer, its rendezvous, its communicator."""
