"""What teaches: by where a message was and where it came, and by what was done to it. Tables, which the manual shows as they are."""

from __future__ import annotations

from enum import StrEnum

HAM, _SPAM = "ham", "spam"


class Before(StrEnum):
    """Where a message was before it came into a folder."""

    ANOTHER_CLASS = "in a folder of another class, whatever lay between"
    SAME_CLASS = "in another folder of the same class"
    OUTSIDE = "in a neutral folder or trash, and in none of another class before that"
    FILED = "nowhere, and we filed it as spam"
    LEFT = "nowhere, and we did not file it as spam"
    HERE = "in this folder, or delivered twice"
    NOWHERE = "nowhere"


class Into(StrEnum):
    """What kind of folder it came into."""

    HAM = "ham: INBOX, Archive"
    UNWANTED = "an unwanted class: Junk"
    OTHER = "another class"
    OUTSIDE = "neutral or trash"


class Sign(StrEnum):
    """What people do to a message without moving it."""

    ANSWERED = "answered"
    FLAGGED = "flagged"
    READ = "read"
    KEYWORD = "keyword"


TEACHES: dict[tuple[Before, Into], str] = {
    (Before.ANOTHER_CLASS, Into.HAM): "moved from another class",
    (Before.ANOTHER_CLASS, Into.UNWANTED): "moved from another class",
    (Before.ANOTHER_CLASS, Into.OTHER): "moved from another class",
    (Before.SAME_CLASS, Into.HAM): "kept in another folder",
    (Before.OUTSIDE, Into.UNWANTED): "moved from a folder of no class",
    (Before.OUTSIDE, Into.OTHER): "moved from a folder of no class",
    (Before.FILED, Into.HAM): "we had filed it as spam",
    (Before.LEFT, Into.UNWANTED): "we had not filed it as spam",
}
"""What teaches the class of the folder that a message came into, and why. A pair that is missing teaches nothing and leaves the
lesson there was. A message that went from a folder teaches nothing; one that came into folders of two classes at once waits for one
of them to go. Ignored folders are not looked at: what lies there is nowhere."""

EVIDENCE: dict[tuple[Sign, Into], str] = {
    (Sign.ANSWERED, Into.HAM): HAM,
    (Sign.FLAGGED, Into.HAM): HAM,
    (Sign.READ, Into.HAM): HAM,
    (Sign.KEYWORD, Into.HAM): _SPAM,
    (Sign.KEYWORD, Into.OTHER): _SPAM,
    (Sign.KEYWORD, Into.OUTSIDE): _SPAM,
}
"""What teaches which class where the operator asks for it, once, a message about which its user has never said anything. A pair that
is missing teaches nothing; so does the opposite, and what was there when the operator began to ask."""
