"""The bytes of versions: the only code that knows them. A leaf package."""
