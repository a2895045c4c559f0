"""Bodies and answers of the API, a module for each noun."""
