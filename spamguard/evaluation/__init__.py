"""Measuring a filter: measures, tables and pictures of how well it judged mail whose class is known."""
