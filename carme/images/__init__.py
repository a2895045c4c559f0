"""Container images as sessions use them: the catalogue, SIF files, a user's own image."""
