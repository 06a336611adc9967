"""Processes: started, supervised, frozen and ended, on this host and, over ssh, on others."""
