"""The HTTP API, JSON in and out: one table of what can be asked, from which the routes and their description are made."""

ROOT = "/api/v1"
