"""Who asks, and may they: tokens, one-time links, sessions, a reverse proxy's word; and what is looked at before anybody is answered."""
