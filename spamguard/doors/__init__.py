"""How mail comes in. A door speaks a protocol and knows the proxy or the engine behind it, never another door."""
