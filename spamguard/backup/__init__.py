"""An installation as one file, and back. What is in it is what cannot be had again: the key, the ledger, and where messages were seen.

Tables and verdicts that were given are caches, mail that is held is mail: neither is in a backup.
"""
