"""Page and HTTP API over one service. No mail passes through here on its way."""
