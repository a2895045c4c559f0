"""Hardware and workloads as TOML files; `carme.library` reads them."""
