"""The collectors: each alone in its module, with the roots it reads from as parameters."""
