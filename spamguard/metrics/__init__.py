"""What an operator sees of a running daemon: counters of all its processes, and whether it lives and can work.

Must never make mail wait, and never be needed for it to flow.
"""
