"""The milter door: Postfix and Sendmail show us their mail, and are told what to put into its header."""
