"""Who may do what: sessions, tokens, CSRF, the guard, and signing in (answers 10, console 5.7)."""

from harvest_console.auth.csrf import csrf_token

__all__ = ["csrf_token"]
