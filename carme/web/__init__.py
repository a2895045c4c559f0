"""Scripts that the pages of hub and service share."""
