"""The whole cluster on one machine: prepares it, renders its configuration, supervises it."""
