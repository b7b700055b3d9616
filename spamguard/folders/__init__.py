"""Folders teach: people move mail, and that is all the training there is."""
