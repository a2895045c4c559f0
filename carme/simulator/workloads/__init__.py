"""What is trained: layers, transformers, measured steps."""
