"""What a user declares: workflows, activities, their options, and the registry that holds them."""
