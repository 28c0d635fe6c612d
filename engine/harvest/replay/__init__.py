"""Pure: history in, decision out. The deterministic loop, the context, matching. No I/O, no clock, no database."""
