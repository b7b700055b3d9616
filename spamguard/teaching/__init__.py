"""Lessons on their way to the ledger: said on a socket, left in a directory, waiting to be learnt.

Needs no numpy and reads no mail: whoever hands a lesson over wants to be gone in milliseconds.
"""
