"""The discrete-event engine, and the plans as models of it."""
