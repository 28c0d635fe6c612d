"""What people do: start, signal, list, read, cancel, audit. API, pages and CLI all call these (design 1)."""
