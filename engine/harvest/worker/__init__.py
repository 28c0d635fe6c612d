"""Taking work, deciding, committing, running activities: everything a worker process does."""
