"""Pages for people: what was said of mail, why, and how to correct it.

The server renders whole pages, which work without the script. Pages must never show mail so that it
acts, change anything on GET, or wait for anything that mail needs on its way.
"""
