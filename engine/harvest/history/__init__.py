"""The event log as data: ids, events, payloads, limits. Knows nothing of the rest."""
