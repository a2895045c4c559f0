from carme.config import Config
PACKAGES: dict[str, str] = {}
def known_apptainer(config): return None
def ensure_apptainer(layout, say): return None
def ensure_base(layout, say): return False
