"""Pages: see what was said of mail, ask why, correct it. Rendered here, whole without a script, a little quicker with one.

Must never show mail so that it acts, change anything by GET, or wait for what the mail's path needs.
"""

from spamguard.web.pages.routing import failed, routes

__all__ = ["failed", "routes"]
