"""The console of Harvest: HTTP API, pages, command line and the development setup."""
