"""How connections come in at a door, whatever is spoken on them: who may, how many, and how they
end in good order.

Knows no protocol; every door stands on it.
"""
