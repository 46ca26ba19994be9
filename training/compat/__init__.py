"""The public surfaces of libraries that users come from, as thin layers over this package."""
