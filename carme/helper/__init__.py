"""`carme-helper`: what the hub does as the user, and the hub's client of it."""
