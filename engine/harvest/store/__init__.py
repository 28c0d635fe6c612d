"""One shard. Every SQL statement of the engine is in this room, one module for each family of tables."""
